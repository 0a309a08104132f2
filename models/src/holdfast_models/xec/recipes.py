"""``holdfast train xec.reg``, ``xec.mae``, ``xec.inp``: data, model, loss and measures together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from torch import nn
from torch.utils.data import Dataset

from holdfast.training import Forecast, Place, Recipe, Task

from .artifacts import Artifacts
from .assembly import make_model
from .data.events import need_files, open_events
from .data.synth_files import ensure_synth
from .evaluation.hidden_metrics import hidden_metrics
from .evaluation.regression_metrics import regression_metrics
from .forecast import by_kernels, forecast_of
from .foreign_keys import HIDDEN_READS, REGRESSOR_READS
from .kernels import check
from .kinds import keep_facts
from .model.regressor import Regressor
from .objectives.reconstruction import ReconstructionObjective, reconstruction_objective
from .objectives.regression import RegressionObjective
from .run_settings import (
    INPAINTER_PRESETS,
    MAE_PRESETS,
    PLATFORMS,
    REGRESSOR_PRESETS,
    AnyRun,
    InpainterRun,
    MaeRun,
    RegressorRun,
)
from .settings import SynthSettings
from .transfer import apply_init, check_init

HEADLINE = (
    "loss", "energy_rel_res_68pct", "uvw_u_res_68pct", "uvw_v_res_68pct", "uvw_w_res_68pct",
    "timing_res_68pct", "angle_resolution_68pct", "mae_npho", "rmse_npho", "mae_time",
    "actual_mask_ratio",
)  # fmt: skip
"""What a physicist looks at first."""
# Neither shapes what is saved nor what it means.
_MAY_CHANGE = ("data.train_path", "data.val_path", "data.cache*", "data.num_threads",
    "data.device_transform", "data.log_invalid_npho", "model.blocks", "output.*",
    "init.*")  # fmt: skip


def build_regressor(settings: RegressorRun, place: Place) -> Task:
    """Events with their truth, encoder and heads."""
    events = _events(settings, tuple(settings.tasks.active()), place)
    return regression_task(settings, place, *events)


def build_reconstruction(settings: MaeRun | InpainterRun, place: Place) -> Task:
    """Events, encoder, and what fills in hidden sensors."""
    return reconstruction_task(settings, place, *_events(settings, (), place))


def regression_task(
    settings: RegressorRun, place: Place, train: Dataset[Any], validation: Dataset[Any] | None
) -> Task:
    """The task of a regressor on events that are open already."""
    model = cast(Regressor, _model("reg", settings, place))
    objective = RegressionObjective(model, settings)
    return _task("reg", settings, model, objective, regression_metrics, train, validation)


def reconstruction_task(
    settings: MaeRun | InpainterRun,
    place: Place,
    train: Dataset[Any],
    validation: Dataset[Any] | None,
) -> Task:
    """The task of an autoencoder or inpainter on events that are open already."""
    kind = "mae" if isinstance(settings, MaeRun) else "inp"
    model = _model(kind, settings, place)
    objective = reconstruction_objective(model, settings)
    return _task(kind, settings, model, objective, hidden_metrics, train, validation)


def _task(
    kind: str,
    settings: AnyRun,
    model: nn.Module,
    objective: RegressionObjective | ReconstructionObjective,
    summarize: Any,
    train: Dataset[Any],
    validation: Dataset[Any] | None,
) -> Task:
    artifacts = None
    if validation is not None:
        artifacts = Artifacts(kind, model, settings, validation, objective)
    return Task(
        model=model,
        loss=objective.loss,
        train=train,
        validation=validation,
        measure=objective.measure,
        summarize=summarize,
        headline=HEADLINE,
        predict=objective.predict,
        opened=partial(keep_facts, kind=kind),
        improved=None if artifacts is None else artifacts.improved,
        ended=None if artifacts is None else artifacts.ended,
    )


def _forecast(kind: str, settings: AnyRun, place: Place) -> Forecast:
    """What a run takes; paths that lead nowhere are said before that."""
    need_files(settings.data)
    check_init(settings, kind)
    return forecast_of(kind, settings, place)


def _events(
    settings: AnyRun, truths: Sequence[str], place: Place
) -> tuple[Dataset[Any], Dataset[Any] | None]:
    """What to train and to validate on; anything wrong with it is said before a model is built."""
    data = settings.data
    train_path, val_path = data.train_path, data.val_path
    need_files(data)
    if not train_path:
        train_path, val_path = _generated(data.synth, place)
    reweighting = settings.reweighting if isinstance(settings, RegressorRun) else None
    say = print if place.main else _nobody
    # For prediction files; for the baseline that shares light by solid angle.
    optional = ("uvwFI",) if reweighting is None else ("xyzVTX",)
    opened = partial(open_events, data, settings.normalization, optional=optional, say=say)
    train = opened(train_path, truths, weights=reweighting)
    if not val_path:
        if place.main:
            print("data.val_path is empty: nothing is measured, the last weights count as best")
        return train, None
    return train, opened(val_path, truths)


def _generated(settings: SynthSettings, place: Place) -> tuple[str, str]:
    """The first rank generates, the others wait for the files."""
    return ensure_synth(settings, say=print if place.main else _nobody)


def _nobody(line: str) -> None:
    """Other ranks say nothing."""


def _model(kind: str, settings: AnyRun, place: Place) -> nn.Module:
    model = make_model(kind, settings)
    for line in apply_init(model, settings, kind):
        if place.main:
            print(line)
    if by_kernels(settings, place):
        why = check.take(model, place.device)
        if why and place.main:
            print(f"blocks: plain, not by kernels: {why}")
    return model


REGRESSOR = Recipe(
    name="xec.reg",
    summary="energy, time, position and direction of a photon from 4760 sensors",
    settings=RegressorRun,
    build=build_regressor,
    forecast=partial(_forecast, "reg"),
    presets=REGRESSOR_PRESETS,
    platforms=PLATFORMS,
    reads=REGRESSOR_READS,
    may_change=_MAY_CHANGE,
)
MAE = Recipe(
    name="xec.mae",
    summary="an encoder of calorimeter events that learns without labels",
    settings=MaeRun,
    build=build_reconstruction,
    forecast=partial(_forecast, "mae"),
    presets=MAE_PRESETS,
    platforms=PLATFORMS,
    reads=HIDDEN_READS,
    may_change=_MAY_CHANGE,
)
INPAINTER = Recipe(
    name="xec.inp",
    summary="fills in what dead sensors of a calorimeter would have seen",
    settings=InpainterRun,
    build=build_reconstruction,
    forecast=partial(_forecast, "inp"),
    presets=INPAINTER_PRESETS,
    platforms=PLATFORMS,
    reads=HIDDEN_READS,
    may_change=_MAY_CHANGE,
)
