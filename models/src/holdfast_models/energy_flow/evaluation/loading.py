"""A trained run, ready to use: its settings, its model with the best weights, its data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from holdfast import HoldfastError, Run
from holdfast.training import load_weights, resolve, saved_config

from ..assembly import make_model
from ..data.pairs import PairSets, load_pairs
from ..data.provenance import changed_data
from ..model.energy_flow import EnergyFlow
from ..recipe import RECIPE
from ..run_settings import EnergyFlowSettings
from .compatibility import Difference, check

__all__ = ["Loaded", "device_named", "load_run"]

_PATH = "data.path="
_TABLE = "words.table.weight"  # the only weights whose shape the vocabulary decides


class Loaded(NamedTuple):
    """What came of a run.

    Args:
        settings: of the run, changed by the overrides.
        model: in evaluation mode, on its device.
        sets: the pairs of the settings.
        checkpoint: where the weights come from.
        remarks: what the overrides changed, as far as it is worth a line.
    """

    settings: EnergyFlowSettings
    model: EnergyFlow
    sets: PairSets
    checkpoint: Path
    remarks: list[Difference]


def load_run(
    run: str | os.PathLike[str],
    *,
    overrides: Sequence[str] = (),
    device: str = "auto",
    best: bool = True,
) -> Loaded:
    """Load a run of ``holdfast train energy_flow``.

    Args:
        run: its folder.
        overrides: settings to change, ``data.split=hard`` each; sizes have to stay.
        device: see ``device_named``.
        best: the weights that were best in validation; the newest if False.
    """
    config = _config(run)
    place = device_named(device)
    # A file may have moved since; every other setting of the run is taken as it was.
    moved = [one for one in overrides if one.startswith(_PATH)]
    saved: EnergyFlowSettings = resolve(RECIPE, config, overrides=moved, platform="none")
    settings: EnergyFlowSettings = resolve(RECIPE, config, overrides=overrides, platform="none")
    remarks = check(saved, settings, str(run))
    sets = load_pairs(settings.data)
    # The vocabulary is that of the run, whatever is measured or asked now.
    own = sets if settings.data == saved.data else load_pairs(saved.data)
    bridge = settings.bridge if saved.bridge.on and settings.bridge.on else saved.bridge
    model = make_model(settings.model, bridge, own.train, core=settings.core)
    remarks += changed_data(run, own, model.bridge, "with --set data.path=FILE")
    checkpoint = _weights(model, run, saved, best=best)
    if not settings.bridge.on:
        model.bridge = None
    return Loaded(settings, model.to(place).eval(), sets, checkpoint, remarks)


def device_named(name: str) -> torch.device:
    """The device of that name; ``auto``: a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise HoldfastError(f"no device {name!r}; give auto, cpu, cuda or cuda:1") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise HoldfastError(
            f"device {name}: there are {torch.cuda.device_count()} GPUs here; give cpu or auto"
        )
    return device


def _config(run: str | os.PathLike[str]) -> str:
    opened = Run.open(run)
    name = opened.meta.get("script")
    if name != RECIPE.name:
        raise HoldfastError(
            f"{run} is a run of {name}; give one that `holdfast train {RECIPE.name}` made"
        )
    try:
        return saved_config(opened.path)
    except HoldfastError:  # whose advice is for `holdfast train`
        raise HoldfastError(
            f"{run} has no settings in it, so it ended before its first step; give another run"
        ) from None


def _weights(
    model: EnergyFlow, run: str | os.PathLike[str], saved: EnergyFlowSettings, *, best: bool
) -> Path:
    try:
        return load_weights(model, run, best=best)
    except HoldfastError as error:
        if model.bridge is None or _TABLE not in str(error):
            raise
        raise HoldfastError(
            f"{run}: the texts of source {saved.data.source} make a vocabulary of "
            f"{len(model.bridge.vocabulary)} pieces, and the run had another one; give the data it "
            "was trained on with --set data.path=FILE"
        ) from error
