"""The data of a run: loaders made as the settings say, and as many workers as pay."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from ..device import Place
from ..loop.step_numbers import size as bytes_text
from ..settings import TrainSettings
from ..task import Data, Task
from .loading import Loader, chunk_of, make_loader, sample_bytes
from .sampling import CHUNKS, share
from .streaming import Streamed
from .workers import (
    choose_threads,
    choose_workers,
    improve,
    measure_loading,
)


class EpochLoaders:
    """Hands out the loader of every epoch.

    A dataset is loaded as ``settings.data`` says; a loader of the user's own is used as it is.
    The number of workers is part of every checkpoint: what they draw depends on it.
    """

    def __init__(
        self, task: Task, settings: TrainSettings, place: Place, say: Callable[[str], None]
    ) -> None:
        self._task, self._settings, self._place, self._say = task, settings, place, say
        self.workers = 0
        self._before: float | None = None
        self._threads = torch.get_num_threads()
        if _is_ours(task.train):
            self.workers, why = self._first_choice()
            say(f"data: {why}")
        elif isinstance(task.train, DataLoader):
            self.workers = task.train.num_workers
        if place.world > 1:
            self._look_at_ranks(task.train)
        self._loader: Iterable[Any] | None = None
        self._validation: Iterable[Any] | None = None
        self.length = _length(self._training())
        self._tell_chunks()

    def _first_choice(self) -> tuple[int, str]:
        given, dataset = self._settings.data, cast("Dataset[Any]", self._task.train)
        if given.workers == "auto" and not _may_be_looked_at(dataset):
            return 0, "0 workers: a stream of your own is read by one; set data.workers for more"
        if given.workers != "auto":
            return choose_workers(given, self._place, 0.0, None)
        # Small chunks: whole ones may take minutes to read, and as many batches as are timed.
        chunked = isinstance(dataset, Streamed) and chunk_of(dataset, given) is not None
        small = CHUNKS * share(given.batch, self._place.world) if chunked else None
        seconds = measure_loading(
            lambda: self._make(dataset, train=True, workers=0, chunk=small), chunked=chunked
        )
        return choose_workers(given, self._place, seconds, None)

    def _tell_chunks(self) -> None:
        """What the chunks of a stream take of the host's memory, before it is taken."""
        stream = getattr(self._training(), "dataset", None)
        if not isinstance(stream, Streamed) or stream.chunk is None:
            return
        data, size, readers = self._settings.data, sample_bytes(stream), max(1, self.workers)
        ahead = data.prefetch * (self.usual or 0) if self.workers else 0
        most = readers * size * (CHUNKS * stream.chunk + ahead)
        self._say(
            f"data: chunks of {stream.chunk} samples, {CHUNKS} at once in "
            f"{'this process' if not self.workers else f'each of {readers} workers'}: "
            f"at most {bytes_text(most)}"
        )

    def _look_at_ranks(self, data: Data) -> None:
        world = self._place.world
        if isinstance(data, IterableDataset) and not isinstance(data, Streamed):
            self._say(
                f"data: your stream has to skip what the other of {world} ranks take; "
                "holdfast.training.Streamed does so by itself"
            )
        elif isinstance(getattr(data, "sampler", None), RandomSampler | SequentialSampler):
            self._say(
                f"data: your loader gives all {world} ranks the same samples; give the trainer "
                "the dataset itself, or a loader with a DistributedSampler"
            )

    # ------------------------------------------------------------------ numbers

    @property
    def usual(self) -> int | None:
        """Samples in a full micro-batch of this rank; None where nobody knows."""
        if _is_ours(self._task.train):
            return share(self._settings.data.batch, self._place.world)
        return getattr(self._task.train, "batch_size", None)

    @property
    def epoch_steps(self) -> int | None:
        """Optimizer steps in one epoch; None where nobody knows."""
        return None if self.length is None else -(-self.length // self._settings.accumulate)

    def steps(self) -> int | None:
        """Optimizer steps in the whole run; None where nobody knows."""
        settings = self._settings
        known = [settings.steps] if settings.steps is not None else []
        if self.epoch_steps is not None and settings.epochs is not None:
            known.append(settings.epochs * self.epoch_steps)
        return min(known) if known else None

    # ------------------------------------------------------------------ loaders

    def epoch(self, number: int) -> Iterable[Any]:
        """The loader for this epoch."""
        loader = self._training()
        self._set_threads()
        for part in (loader, getattr(loader, "sampler", None), getattr(loader, "dataset", None)):
            set_epoch = getattr(part, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(number)
        return loader

    def epoch_ends(self, waited: float, seconds: float) -> None:
        """More workers, where that helps.

        Args:
            waited: share of its time that the loop waited for data.
            seconds: what it waited for one batch.
        """
        if self._settings.data.workers != "auto" or not _is_ours(self._task.train):
            return
        if not _may_be_looked_at(self._task.train):
            return
        better = improve(
            self.workers, waited, place=self._place, before=self._before, seconds=seconds
        )
        if better is None:
            return
        self._before = waited
        self._use(better[0])
        self._say(f"data: {better[1]}")

    def validation(self) -> Iterable[Any]:
        """The batches of this rank for validation."""
        data = self._task.validation
        assert data is not None
        if self._validation is None:
            ours = _is_ours(data)
            self._validation = (
                self._make(cast("Dataset[Any]", data), train=False, workers=self.workers)
                if ours
                else cast("Iterable[Any]", data)
            )
        return self._validation

    def _training(self) -> Iterable[Any]:
        if self._loader is None:
            data = self._task.train
            if _is_ours(data):
                data = self._make(cast("Dataset[Any]", data), train=True, workers=self.workers)
            self._loader = cast("Iterable[Any]", data)
        return self._loader

    def _make(
        self, dataset: Dataset[Any], *, train: bool, workers: int, chunk: int | None = None
    ) -> Loader:
        settings = self._settings
        data = settings.data
        if chunk is not None:
            data = dataclasses.replace(data, chunk=chunk)
        if not train and settings.validation.batch is not None:
            data = dataclasses.replace(data, batch=settings.validation.batch)
        return make_loader(
            dataset,
            data,
            self._place,
            train=train,
            seed=settings.seed.seed,
            workers=workers,
            collate_fn=self._task.collate,
            compiled=settings.compile.name != "none",
            threads=choose_threads(workers, self._place, given=data.threads).worker,
        )

    def _set_threads(self) -> None:
        """Beside workers that load, fewer threads compute on a CPU; a number given stays."""
        given = self._settings.data.threads
        free = self._place.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ
        if not _is_ours(self._task.train) or (given == "auto" and not free):
            return
        threads = choose_threads(self.workers, self._place, given=given)
        wanted = threads.main if self.workers or given != "auto" else self._threads
        if wanted != torch.get_num_threads():
            torch.set_num_threads(wanted)
            self._say(f"data: {threads.why}")

    def _use(self, workers: int) -> None:
        if workers == self.workers:
            return
        for loader in (self._loader, self._validation):
            if isinstance(loader, Loader):
                loader.close()
        self.workers, self._loader, self._validation = workers, None, None

    def close(self) -> None:
        """End workers that would last; as many threads compute as before."""
        torch.set_num_threads(self._threads)
        for loader in (self._loader, self._validation):
            if isinstance(loader, Loader):
                loader.close()

    # ------------------------------------------------------------------ resuming

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return {"workers": self.workers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with as many workers."""
        if self._settings.data.workers == "auto" and _is_ours(self._task.train):
            self._use(int(state["workers"]))


def _is_ours(data: Data) -> bool:
    """Whether the trainer makes the loader."""
    return isinstance(data, Dataset) and not isinstance(data, DataLoader)


def _may_be_looked_at(data: Data) -> bool:
    """Whether a few batches may be read ahead of the run; of a stream they would be gone."""
    return isinstance(data, Streamed) or not isinstance(data, IterableDataset)


def _length(loader: Iterable[Any]) -> int | None:
    try:
        return len(cast(Any, loader))
    except (TypeError, NotImplementedError):
        return None
