"""Predictions for files of events, by a trained run or an exported regressor."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from holdfast.training import PredictionWriter, Streamed, Task, predict

from ..assembly import make_objective
from ..data.events import CHUNK, event_files
from ..export import OnnxRegressor
from ..loading import load_run
from ..run_settings import AnyRun, RegressorRun
from ..settings import DataSettings
from .root_writer import RootPredictions

Say = Callable[[str], None]


class Predictor(NamedTuple):
    """Something that predicts: a model, what it is asked, and the settings of its run."""

    settings: AnyRun
    model: nn.Module
    ask: Callable[[nn.Module, Any], Mapping[str, Tensor]]
    weights: str


def load_predictor(
    source: str | os.PathLike[str], *, device: str = "cpu", averaged: bool | None = None
) -> Predictor:
    """A run folder, a checkpoint, or an ONNX file of ``holdfast xec export``."""
    if Path(source).suffix == ".onnx":
        model = OnnxRegressor(source)
        settings = model.settings
        asked = make_objective(model, settings).predict
        return Predictor(settings, model, asked, Path(source).name)
    loaded = load_run(source, device=device, averaged=averaged)
    asked = make_objective(loaded.model, loaded.settings).predict
    return Predictor(loaded.settings, loaded.model, asked, loaded.checkpoint.name)


def predict_files(
    predictor: Predictor,
    path: str,
    out: str | os.PathLike[str],
    *,
    entries: tuple[int, int | None] = (0, None),
    chunk: int = 4096,
    batch: int | None = None,
    max_events: int | None = None,
    overwrite: bool = False,
    say: Say | None = None,
) -> Any:
    """Write what a model says about the events of files; goes on where it was interrupted.

    Args:
        predictor: see ``load_predictor``.
        path: a file, a folder or a pattern.
        out: the ROOT file to write.
        entries: the first event, and the one after the last; None: all there are.
        chunk: events after which everything written is safe.
        batch: events at once; as in the validation of the run by default.
        max_events: so many at most.
        overwrite: replace what is there.
        say: told now and then how far it is.
    """
    settings = predictor.settings
    wanted = ("xyzVTX", *settings.tasks.active()) if isinstance(settings, RegressorRun) else ()
    events = open_files(settings, settings.data, path, wanted)
    first, last = entries
    if max_events is not None:
        last = min(first + max_events, len(events) if last is None else last)
    train = settings.train
    size = batch or train.validation.batch or train.data.batch
    channels = () if isinstance(settings, RegressorRun) else settings.model.predict_channels
    what = {"weights": predictor.weights, "files": path, "range": [first, last], "batch": size}
    writer = RootPredictions(
        out,
        settings.kind,
        settings.normalization,
        channels,
        what=what,
        first=first,
        overwrite=overwrite,
    )
    return run_predictions(predictor, events, writer, (first, last), size, chunk, say)


def open_files(settings: AnyRun, data: DataSettings, path: str, wanted: Sequence[str]) -> Streamed:
    """The events of files in their order, as a run reads them; truths where every file has them."""
    data = dataclasses.replace(
        data, fiducial=dataclasses.replace(data.fiducial, enabled=False), cache="none"
    )
    files = event_files(data, settings.normalization, path, optional=wanted)
    return Streamed(files, chunk=CHUNK)


def run_predictions(
    predictor: Predictor,
    events: Streamed,
    writer: PredictionWriter,
    entries: tuple[int, int | None],
    batch: int,
    chunk: int,
    say: Say | None,
) -> Any:
    """Ask for every event, batch by batch."""
    task = Task(model=predictor.model, loss=_no_loss, train=events, predict=predictor.ask)
    train = predictor.settings.train
    # A loader of its own costs more than it gives for files that threads decompress.
    data = dataclasses.replace(train.data, batch=batch, workers=0, chunk=None)
    validation = dataclasses.replace(train.validation, batch=None)
    train = dataclasses.replace(train, data=data, validation=validation, precision="fp32")
    return predict(task, train, writer, data=events, entries=entries, chunk=chunk, say=say)


def _no_loss(model: nn.Module, batch: Any) -> Tensor:
    raise AssertionError("predictions have no loss")
