"""A trained run, ready to use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from holdfast import HoldfastError
from holdfast.training import load_weights

from .assembly import make_model
from .geometry.survey import geometry_hash
from .kinds import saved_run
from .run_settings import AnyRun


class Loaded(NamedTuple):
    """A model in evaluation mode, and where it comes from."""

    settings: AnyRun
    model: nn.Module
    checkpoint: Path
    folder: Path


def load_run(
    source: str | os.PathLike[str],
    *,
    device: torch.device | str = "cpu",
    best: bool = True,
    averaged: bool | None = None,
) -> Loaded:
    """Load a run of ``holdfast train xec.reg``, ``xec.mae`` or ``xec.inp``.

    Args:
        source: a run folder or a checkpoint.
        device: where the model is put.
        best: the weights that were best in validation; the newest if False.
        averaged: the running average; where there is one by default.
    """
    saved = saved_run(source)
    if saved.geometry not in (None, geometry_hash()):
        raise HoldfastError(
            f"{source} was trained on another geometry ({saved.geometry}, here {geometry_hash()})"
        )
    model = make_model(saved.settings)
    checkpoint = load_weights(model, source, best=best, averaged=averaged)
    return Loaded(saved.settings, model.to(device).eval(), checkpoint, saved.folder)
