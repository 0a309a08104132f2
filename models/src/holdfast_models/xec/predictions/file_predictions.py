"""Predictions for files of events, by a trained run or an exported regressor."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from holdfast.training import Gathered, PredictionWriter, Task, predict

from ..data.event_files import EventFile
from ..data.events import event_files
from ..export import OnnxRegressor
from ..loading import load_run
from ..objectives.reconstruction import reconstruction_objective
from ..objectives.regression import RegressionObjective
from ..run_settings import AnyRun, RegressorRun
from ..settings import DataSettings
from .root_writer import Kind, RootPredictions

Say = Callable[[str], None]


class Events(Dataset[Any]):
    """The events of files in their order, read by ranges; any of them can be the first."""

    def __init__(self, files: Sequence[EventFile]) -> None:
        self._files = files
        self._ends = list(itertools.accumulate(len(file) for file in files))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> Gathered:
        """Neighbours, which is what predictions ask for, are read at once."""
        parts: list[Mapping[str, Tensor]] = []
        at = 0
        while at < len(indices):
            first = indices[at]
            number = bisect.bisect_right(self._ends, first)
            begin = self._ends[number] - len(self._files[number])
            stop = at
            while stop < len(indices) and indices[stop] == first + stop - at < self._ends[number]:
                stop += 1
            wanted = range(first - begin, first - begin + stop - at)
            parts.append(cast(Any, self._files[number].__getitems__(wanted)).batch)
            at = stop
        together = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return Gathered(together, len(indices))


class Predictor(NamedTuple):
    """Something that predicts: a model, what it is asked, and the settings of its run."""

    kind: Kind
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
        objective = RegressionObjective(cast(Any, model), settings)
        return Predictor("reg", settings, model, objective.predict, Path(source).name)
    loaded = load_run(source, device=device, averaged=averaged)
    if isinstance(loaded.settings, RegressorRun):
        asked = RegressionObjective(cast(Any, loaded.model), loaded.settings).predict
    else:
        asked = reconstruction_objective(loaded.model, loaded.settings).predict
    kind = cast(Kind, loaded.kind)
    return Predictor(kind, loaded.settings, loaded.model, asked, loaded.checkpoint.name)


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
    kind, settings = predictor.kind, predictor.settings
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
        out, kind, settings.normalization, channels, what=what, first=first, overwrite=overwrite
    )
    return run_predictions(predictor, events, writer, (first, last), size, chunk, say)


def open_files(settings: AnyRun, data: DataSettings, path: str, wanted: Sequence[str]) -> Events:
    """The events of files as a run reads them; truths where every file has them."""
    data = dataclasses.replace(
        data, fiducial=dataclasses.replace(data.fiducial, enabled=False), cache="none"
    )
    return Events(event_files(data, settings.normalization, path, optional=wanted))


def run_predictions(
    predictor: Predictor,
    events: Events,
    writer: PredictionWriter,
    entries: tuple[int, int | None],
    batch: int,
    chunk: int,
    say: Say | None,
) -> Any:
    """Ask for every event, batch by batch."""
    task = Task(
        model=predictor.model,
        loss=_no_loss,
        train=events,
        predict=predictor.ask,
    )
    train = predictor.settings.train
    # A loader of its own costs more than it gives for files that threads decompress.
    data = dataclasses.replace(train.data, batch=batch, workers=0)
    validation = dataclasses.replace(train.validation, batch=None)
    train = dataclasses.replace(train, data=data, validation=validation, precision="fp32")
    return predict(task, train, writer, data=events, entries=entries, chunk=chunk, say=say)


def _no_loss(model: nn.Module, batch: Any) -> Tensor:
    raise AssertionError("predictions have no loss")
