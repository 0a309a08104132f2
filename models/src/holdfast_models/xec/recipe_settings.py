"""The settings of each recipe: their class, presets, platforms and the names others use for them.

What reads the settings of a run or of a file needs this and not what ``recipes.py`` adds: the
functions that build a run, which may begin with the weights of another run, and so read its
settings first.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.training import Place, Recipe, Task

from .foreign_keys import HIDDEN_READS, REGRESSOR_READS
from .run_settings import (
    INPAINTER_PRESETS,
    MAE_PRESETS,
    PLATFORMS,
    REGRESSOR_PRESETS,
    InpainterRun,
    MaeRun,
    RegressorRun,
)

# Neither shapes what is saved nor what it means.
_MAY_CHANGE = ("data.train_path", "data.val_path", "data.cache*", "data.num_threads",
    "data.device_transform", "data.log_invalid_npho", "model.blocks", "output.*",
    "init.*")  # fmt: skip


def _builds_nothing(settings: Any, place: Place) -> Task:
    raise AssertionError("these recipes are for reading settings; recipes.py has those that build")


_settings = partial(Recipe, build=_builds_nothing, platforms=PLATFORMS, may_change=_MAY_CHANGE)
REGRESSOR_SETTINGS = _settings(
    name="xec.reg",
    summary="energy, time, position and direction of a photon from 4760 sensors",
    settings=RegressorRun,
    presets=REGRESSOR_PRESETS,
    reads=REGRESSOR_READS,
)
MAE_SETTINGS = _settings(
    name="xec.mae",
    summary="an encoder of calorimeter events that learns without labels",
    settings=MaeRun,
    presets=MAE_PRESETS,
    reads=HIDDEN_READS,
)
INPAINTER_SETTINGS = _settings(
    name="xec.inp",
    summary="fills in what dead sensors of a calorimeter would have seen",
    settings=InpainterRun,
    presets=INPAINTER_PRESETS,
    reads=HIDDEN_READS,
)
SETTINGS = {"reg": REGRESSOR_SETTINGS, "mae": MAE_SETTINGS, "inp": INPAINTER_SETTINGS}
"""By the kind of model; for ``resolve``."""
