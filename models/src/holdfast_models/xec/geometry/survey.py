"""The surveyed table, and whether the formulas agree with it."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from . import layout, neighbours
from .positions import positions

_FILE = resources.files(__name__.rpartition(".")[0]).joinpath("survey.json")
LARGEST_ERROR = 5e-4  # cm: 5 micrometres


class Check(NamedTuple):
    """One comparison with the table."""

    what: str
    agrees: bool
    detail: str


def surveyed() -> dict[str, Any]:
    """The table as it was surveyed."""
    text = _FILE.read_text(encoding="utf-8")
    return json.loads(text)


def compare() -> list[Check]:
    """Every formula beside the table."""
    table = surveyed()
    error = float(np.abs(positions() - np.array(table["positions_xyz"])).max())
    checks = [
        Check("sensors", table["n_sensors"] == layout.SENSORS, str(layout.SENSORS)),
        Check(
            "positions",
            error <= LARGEST_ERROR,
            f"{error * 1e4:.1f} micrometres at most, {LARGEST_ERROR * 1e4:.0f} allowed",
        ),
    ]
    for name in ("us", "ds", "outer_coarse", "outer_center", "outer_fine"):
        own = layout.IMAGES[name.removesuffix("_fine")]()
        same = np.array_equal(own, table[name]["index_map"])
        checks.append(Check(f"image {name}", same, " x ".join(map(str, own.shape))))
    for face in ("top", "bottom"):
        rows = [one for row in table["hex_rows"][face] for one in row]
        checks.append(Check(f"nodes {face}", rows == layout.hexagonal(face).tolist(), "73"))
    links = neighbours.hexagonal_links()
    same = np.array_equal(links, table["hex_neighbors"]["table"])
    count = int((links[:, 1:] != neighbours.ABSENT).sum())
    return [*checks, Check("hexagonal links", same, f"{count} directed links")]


@cache
def geometry_hash() -> str:
    """Names this geometry in checkpoints; of the table, whose bytes no machine rounds."""
    table = _FILE.read_bytes()
    return hashlib.sha256(table).hexdigest()[:16]
