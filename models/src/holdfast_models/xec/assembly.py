"""The model of a run from its settings, for training and for loading."""

from __future__ import annotations

from typing import cast

from torch import nn

from .losses import Balance, HiddenLosses
from .model.inpainter import Inpainter
from .model.mae import MaskedAutoencoder
from .model.regressor import Regressor
from .run_settings import AnyRun, InpainterRun, MaeRun, RegressorRun


def make_model(kind: str, settings: AnyRun) -> nn.Module:
    """A model with fresh weights; what its loss learns is part of it."""
    if kind == "reg":
        run = cast(RegressorRun, settings)
        regressor = Regressor(run.model, run.tasks, run.normalization)
        if run.loss_balance == "auto":
            regressor.balance = Balance(tuple(run.tasks.active()))
        return regressor
    run = cast(MaeRun | InpainterRun, settings)
    if isinstance(run, MaeRun):
        model: nn.Module = MaskedAutoencoder(run.model)
    else:
        model = Inpainter(run.model, run.normalization)
    model.losses = HiddenLosses(run.loss, run.model.predict_channels, run.normalization)
    return model
