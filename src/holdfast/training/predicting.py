"""Predictions of a trained model for a whole dataset, written as they are made.

Never more than a batch of them is in memory. What was kept survives an interruption, and a second
call goes on after it: batches are cut at the same places, so the file is the same to the bit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset

from ..checkpoint.file import load
from ..checkpoint.training_state import TrainingState
from ..errors import UsageError
from . import distributed, seeding
from .data.loading import Loader, make_loader
from .data.streaming import Streamed
from .data.tensor_files import HEADER, PARTIAL, TensorWriter
from .data.transfer import Transfer, count
from .data.workers import choose_threads, choose_workers, measure_loading
from .device import Place
from .loop.interrupts import Interrupts
from .loop.step_numbers import pace
from .loop.validation import evaluating
from .precision import Precision
from .recipe import Recipe
from .settings import TrainSettings
from .task import Data, Task
from .weights import load_weights

# Seconds between two lines about how far it is.
_REPORTED_EVERY = 10.0


class PredictionWriter(Protocol):
    """Where predictions go: ``TensorPredictions``, or a format of your own."""

    entries: int
    """Samples of the dataset whose predictions are safe: an interrupted writing goes on there."""

    def append(self, predictions: Mapping[str, Tensor], entries: int) -> None:
        """Write the rows of so many samples; tensors on the CPU. Rows may be more or fewer."""
        ...

    def keep(self) -> None:
        """Make what was appended safe."""
        ...

    def close(self, *, finished: bool) -> None:
        """No more will come; always called. ``finished``: all of them came."""
        ...


class TensorPredictions:
    """Predictions as a folder of tensors, which ``MappedTensors`` reads.

    Args:
        folder: where to.
        what: plain values that say what is predicted and from what; an unfinished folder of
            anything else is refused.
        overwrite: begin anew, whatever is there.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        what: Mapping[str, Any] | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        what = dict(what or {})
        place = Path(folder)
        if not overwrite and (place / HEADER).exists():
            raise UsageError(f"{place}: holds predictions already; write elsewhere, or overwrite")
        started = (place / PARTIAL).exists() and not overwrite
        self._writer = TensorWriter(place, overwrite=overwrite, resume=True)
        noted = self._writer.noted
        self.entries = int(noted.get("entries", 0))
        self._seen = self.entries
        if started and {**noted, "entries": 0} != {**what, "entries": 0}:
            self._writer.stop()
            changed = [k for k in {*noted, *what} - {"entries"} if noted.get(k) != what.get(k)]
            raise UsageError(
                f"{place}: was begun with another {', '.join(sorted(changed))}; "
                "write elsewhere, or overwrite"
            )
        self._writer.noted = {**what, "entries": self.entries}

    def append(self, predictions: Mapping[str, Tensor], entries: int) -> None:
        """Write the rows of so many samples."""
        self._writer.append(predictions)
        self._seen += entries

    def keep(self) -> None:
        """Make what was appended safe."""
        self._writer.noted["entries"] = self.entries = self._seen
        self._writer.keep()

    def close(self, *, finished: bool) -> None:
        """Make the folder readable, or leave it for another call."""
        if finished:
            self.keep()
            self._writer.close()
        else:
            self._writer.stop()


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """How it went: samples written in all, samples found written already, seconds."""

    entries: int
    before: int
    seconds: float
    finished: bool


def predict(
    task: Task,
    settings: TrainSettings,
    writer: PredictionWriter,
    *,
    data: Data | None = None,
    entries: tuple[int, int | None] = (0, None),
    chunk: int = 4096,
    place: Place | None = None,
    say: Callable[[str], None] | None = None,
) -> Predicted:
    """Write what the model of a task, with the weights it has, predicts for a dataset.

    In evaluation mode, without gradients, in the precision of training; afterwards each module is
    in the mode it was in. Ctrl-C keeps what is there and ends it.

    Args:
        task: has a ``predict``.
        settings: those the model was trained with.
        writer: where predictions go, and how many are there already.
        data: what to predict for; the validation set by default.
        entries: the first sample, and the one after the last; None: all there are.
        chunk: samples between two moments at which everything written is made safe.
        place: where the model computes; a single process.
        say: told now and then how far it is.
    """
    if task.predict is None:
        raise UsageError("this task has no predict; give Task(predict=...), tensors by name")
    data = task.validation if data is None else data
    if data is None:
        raise UsageError("this task has no validation set; say which data to predict for")
    if chunk < 1:
        raise UsageError(f"a chunk of {chunk} samples; give at least 1")
    if place is None:
        with distributed.joined(settings.device) as place:
            pass
    before = done = writer.entries
    first, last = entries
    began = reported = time.monotonic()
    finished = False
    transfer = Transfer(place.device)
    precision = Precision(settings.precision, place.device)
    model = task.model.to(place.device)
    try:
        with evaluating(model), torch.no_grad(), Interrupts() as interrupts:
            for batch, samples in _batches(task, data, settings, place, first + done, last):
                with precision.autocast():
                    found = task.predict(model, transfer(batch))
                writer.append({name: value.cpu() for name, value in found.items()}, samples)
                done += samples
                if done - writer.entries >= chunk:
                    writer.keep()
                now = time.monotonic()
                if say is not None and now - reported > _REPORTED_EVERY:
                    reported = now
                    say(f"{done} samples predicted, {pace((done - before) / (now - began))}")
                if interrupts.asked is not None:
                    writer.keep()
                    break
            else:
                finished = True
    finally:
        writer.close(finished=finished)
    seconds = time.monotonic() - began
    return Predicted(entries=done, before=before, seconds=seconds, finished=finished)


def predict_run(
    recipe: Recipe,
    settings: Any,
    source: str | os.PathLike[str],
    make_writer: Callable[[Mapping[str, Any]], PredictionWriter],
    *,
    of: str = "validation",
    entries: tuple[int, int | None] = (0, None),
    chunk: int = 4096,
    say: Callable[[str], None] | None = None,
) -> Predicted:
    """Predictions of a trained recipe: the best weights of a run, averaged where they were.

    Args:
        recipe: what was trained.
        settings: of the run.
        source: a run folder, or one checkpoint.
        make_writer: makes the writer, from what is to be predicted with what.
        of: "validation" or "train".
        entries: see ``predict``.
        chunk: see ``predict``.
        say: see ``predict``.
    """
    with distributed.joined(settings.train.device) as place:
        if place.world > 1:
            raise UsageError("predictions are made by one process; give each its own --entries")
        put_back = seeding.prepare(settings.train.seed, place.rank)
        try:
            task = recipe.build(settings, place)
        finally:
            put_back()
        if task.predict is None:
            raise UsageError(
                f"recipe {recipe.name} predicts nothing; give its Task a predict(model, batch)"
            )
        checkpoint = load_weights(task.model, source)
        _load_state(task, checkpoint)
        train = settings.train
        batch = train.validation.batch or train.data.batch
        what = {"weights": checkpoint.name, "data": of, "range": list(entries), "batch": batch}
        return predict(
            task,
            train,
            make_writer(what),
            data=task.train if of == "train" else task.validation,
            entries=entries,
            chunk=chunk,
            place=place,
            say=say,
        )


def _load_state(task: Task, checkpoint: Path) -> None:
    """What else belongs to the model at that step: a schedule of its noise, a vocabulary."""
    saved = load(checkpoint)[0]["others"]
    own = {name: one for name, one in task.state.items() if name in saved}
    state = TrainingState({}, [], others=own)
    state.put_back({"others": {name: saved[name] for name in own}}, parts=("others",))


def _batches(
    task: Task,
    data: Data,
    settings: TrainSettings,
    place: Place,
    first: int,
    last: int | None,
) -> Iterator[tuple[Any, int]]:
    """Batches in the order of the data, from one sample to another, and how many each holds."""
    length = _length(data)
    if length is not None:
        if first > length or (last is not None and last > length):
            raise UsageError(f"the data has {length} samples; give --entries among them")
        until = length if last is None else last
        part: Dataset[Any]
        if isinstance(data, Streamed):
            part = data.between(first, until)
        else:
            part = Subset(cast("Dataset[Any]", data), range(first, until))
        for batch in _loader(task, part, settings, place):
            yield batch, count(batch)
        return
    # A stream of unknown length, or a loader, has to be read from its beginning.
    seen = 0
    loader = data if not isinstance(data, Dataset) else _loader(task, data, settings, place)
    for batch in loader:
        samples = count(batch)
        seen += samples
        if seen - samples < first < seen or (last is not None and seen - samples < last < seen):
            raise UsageError("a stream is cut into batches: --entries begin and end with one")
        if seen > first:
            yield batch, samples
        if seen == last:
            return


def _length(data: Data) -> int | None:
    """Samples of data that can be read from any of them on; None where it cannot."""
    if isinstance(data, Streamed):
        return data.held
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return len(cast(Any, data))
    return None


def _loader(task: Task, data: Dataset[Any], settings: TrainSettings, place: Place) -> Loader:
    given = replace(settings.data, batch=settings.validation.batch or settings.data.batch)

    def make(workers: int) -> Loader:
        return make_loader(
            data,
            given,
            place,
            train=False,
            seed=settings.seed.seed,
            workers=workers,
            collate_fn=task.collate,
            threads=choose_threads(workers, place, given=given.threads).worker,
        )

    if isinstance(data, Streamed):
        return make(0)  # batches of several workers come in turns, not in order
    if isinstance(data, IterableDataset):
        return make(0 if given.workers == "auto" else given.workers)
    seconds = measure_loading(lambda: make(0)) if given.workers == "auto" else 0.0
    return make(choose_workers(given, place, seconds, None)[0])
