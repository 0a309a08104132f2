"""Which of the three models a run is of, and what it was made with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from holdfast import HoldfastError, Run
from holdfast.training import Recipe, resolve, saved_config

from .geometry.survey import geometry_hash
from .run_settings import AnyRun

FACTS = "xec.json"
"""In the run folder: what the settings do not say."""


class SavedRun(NamedTuple):
    """What is known of a run without its weights."""

    settings: AnyRun
    folder: Path
    geometry: str | None


def recipe_of(kind: str) -> Recipe:
    """The recipe of "reg", "mae" or "inp"."""
    # Late: the recipes load other runs through this file.
    from .recipes import INPAINTER, MAE, REGRESSOR

    return {"reg": REGRESSOR, "mae": MAE, "inp": INPAINTER}[kind]


def saved_run(source: str | os.PathLike[str]) -> SavedRun:
    """The run of a folder, or of a checkpoint in it.

    Raises:
        HoldfastError: it is no run of this family.
    """
    path = Path(source)
    if not path.exists():
        raise HoldfastError(f"no run or checkpoint at {path}; check the path")
    folder = path if path.is_dir() else path.parent.parent
    run = Run.open(folder)
    name = str(run.meta.get("script"))
    family, _, kind = name.partition(".")
    if family != "xec" or kind not in ("reg", "mae", "inp"):
        raise HoldfastError(f"{source} is a run of {name}, not of xec.reg, xec.mae or xec.inp")
    settings = resolve(recipe_of(kind), saved_config(run.path), platform="none")
    facts = folder / FACTS
    known = json.loads(facts.read_text(encoding="utf-8")) if facts.exists() else {}
    return SavedRun(settings, run.path, known.get("geometry"))


def keep_facts(folder: Path, kind: str) -> None:
    """Leave in a run folder what the settings do not say."""
    facts = {"kind": kind, "geometry": geometry_hash(), "format": 1}
    (folder / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
