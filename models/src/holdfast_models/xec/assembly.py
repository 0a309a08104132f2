"""The model of a run and what it is asked, from its settings; for training and for loading."""

from __future__ import annotations

from typing import cast

from torch import nn

from .losses import Balance, HiddenLosses
from .model.inpainter import Inpainter
from .model.mae import MaskedAutoencoder
from .model.regressor import Regressor
from .objectives.reconstruction import ReconstructionObjective
from .objectives.regression import RegressionObjective
from .run_settings import AnyRun, MaeRun, RegressorRun

Objective = RegressionObjective | ReconstructionObjective


def make_model(settings: AnyRun) -> nn.Module:
    """A model with fresh weights; what its loss learns is part of it."""
    if isinstance(settings, RegressorRun):
        regressor = Regressor(settings.model, settings.tasks, settings.normalization)
        if settings.loss_balance == "auto":
            regressor.balance = Balance(tuple(settings.tasks.active()))
        return regressor
    if isinstance(settings, MaeRun):
        model: nn.Module = MaskedAutoencoder(settings.model)
    else:
        model = Inpainter(settings.model, settings.normalization)
    channels = settings.model.predict_channels
    model.losses = HiddenLosses(settings.loss, channels, settings.normalization)
    return model


def make_objective(model: nn.Module, settings: AnyRun) -> Objective:
    """What the model is trained for: loss, measures, predictions."""
    if isinstance(settings, RegressorRun):
        return RegressionObjective(cast(Regressor, model), settings)
    return ReconstructionObjective(model, settings)
