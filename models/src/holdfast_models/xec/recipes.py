"""``holdfast train xec.reg``, ``xec.mae``, ``xec.inp``: data, model, loss and measures together."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from torch import nn
from torch.utils.data import Dataset

from holdfast.training import Forecast, Place, Recipe, Task

from .artifacts import Artifacts
from .assembly import make_model, make_objective
from .data.events import need_files, open_events
from .data.synth_files import ensure_synth
from .evaluation.hidden_metrics import hidden_metrics
from .evaluation.regression_metrics import regression_metrics
from .forecast import by_kernels, forecast_of
from .kernels import check
from .loading import keep_facts
from .recipe_settings import INPAINTER_SETTINGS, MAE_SETTINGS, REGRESSOR_SETTINGS
from .run_settings import AnyRun, RegressorRun
from .transfer import apply_init, check_init

HEADLINE = (
    "loss", "energy_rel_res_68pct", "uvw_u_res_68pct", "uvw_v_res_68pct", "uvw_w_res_68pct",
    "timing_res_68pct", "angle_resolution_68pct", "mae_npho", "rmse_npho", "mae_time",
    "actual_mask_ratio",
)  # fmt: skip
"""What a physicist looks at first."""


def build(settings: AnyRun, place: Place) -> Task:
    """Events, encoder, and what the model is for."""
    return task_of(settings, place, *_events(settings, place))


def task_of(
    settings: AnyRun, place: Place, train: Dataset[Any], validation: Dataset[Any] | None
) -> Task:
    """The task of a run on events that are open already."""
    model = _model(settings, place)
    objective = make_objective(model, settings)
    artifacts = None
    if validation is not None:
        artifacts = Artifacts(model, settings, validation, objective)
    return Task(
        model=model,
        loss=objective.loss,
        train=train,
        validation=validation,
        measure=objective.measure,
        summarize=regression_metrics if settings.kind == "reg" else hidden_metrics,
        headline=HEADLINE,
        predict=objective.predict,
        opened=partial(keep_facts, kind=settings.kind),
        improved=None if artifacts is None else artifacts.improved,
        ended=None if artifacts is None else artifacts.ended,
    )


def _forecast(settings: AnyRun, place: Place) -> Forecast:
    """What a run takes; paths that lead nowhere are said before that."""
    need_files(settings.data)
    check_init(settings)
    return forecast_of(settings, place)


def _events(settings: AnyRun, place: Place) -> tuple[Dataset[Any], Dataset[Any] | None]:
    """What to train and to validate on; anything wrong with it is said before a model is built."""
    data = settings.data
    train_path, val_path = data.train_path, data.val_path
    need_files(data)
    say = print if place.main else _nobody
    if not train_path:
        # The first rank generates, the others wait for the files.
        train_path, val_path = ensure_synth(data.synth, say=say)
    # The place: for the baseline that shares light by solid angle; the vertex: for predictions.
    truths, optional, reweighting = (), ("uvwFI",), None
    if isinstance(settings, RegressorRun):
        truths, optional = tuple(settings.tasks.active()), ("xyzVTX",)
        reweighting = settings.reweighting
    opened = partial(open_events, data, settings.normalization, optional=optional, say=say)
    train = opened(train_path, truths, weights=reweighting)
    if not val_path:
        if place.main:
            print("data.val_path is empty: nothing is measured, the last weights count as best")
        return train, None
    return train, opened(val_path, truths)


def _nobody(line: str) -> None:
    """Other ranks say nothing."""


def _model(settings: AnyRun, place: Place) -> nn.Module:
    model = make_model(settings)
    for line in apply_init(model, settings):
        if place.main:
            print(line)
    if by_kernels(settings, place):
        why = check.take(model, place.device)
        if why and place.main:
            print(f"blocks: plain, not by kernels: {why}")
    return model


_recipe = partial(dataclasses.replace, build=build, forecast=_forecast)
REGRESSOR = _recipe(REGRESSOR_SETTINGS)
MAE = _recipe(MAE_SETTINGS)
INPAINTER = _recipe(INPAINTER_SETTINGS)


def recipe_of(kind: str) -> Recipe:
    """The recipe of "reg", "mae" or "inp"."""
    return {"reg": REGRESSOR, "mae": MAE, "inp": INPAINTER}[kind]
