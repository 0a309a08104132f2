"""Names of quantities here, and of the branches of files that hold them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from holdfast import HoldfastError

BRANCHES: Mapping[str, str] = {
    "run": "run",
    "event": "event",
    "angle": "emiAng",
    "energy": "energyTruth",
    "timing": "timeTruth",
    "uvwFI": "uvwTruth",
    "angleVec": "emiVec",
    "n_gamma": "n_gamma",
    "xyzTruth": "xyzTruth",
    "xyzVTX": "xyzVTX",
    "dead": "dead",
    "npho_clean": "npho_clean",
}
"""All but photons and times, whose branches the user chooses."""

WIDTHS: Mapping[str, int] = {
    "npho": 4760, "time": 4760, "dead": 4760, "npho_clean": 4760,
    "angle": 2, "uvwFI": 3, "angleVec": 3, "xyzTruth": 3, "xyzVTX": 3,
}  # fmt: skip
"""Numbers per event; one where nothing is said."""


def import_uproot() -> Any:
    """The library that reads and writes ROOT files, or one line that says how to get it."""
    try:
        return importlib.import_module("uproot")
    except ImportError:
        raise HoldfastError(
            'ROOT files need uproot; install it with `pip install "holdfast-models[xec]"`'
        ) from None
