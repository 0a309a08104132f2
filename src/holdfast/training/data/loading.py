"""Loaders that fit the trainer: same batches for any number of ranks and workers, on the CPU.

Where the user has set a default device (``torch.set_default_device("cuda")``), whatever a loader
makes would land there: seeds, index tensors, collated batches, in workers too. Loading happens
on the CPU here, always; only the step moves a batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Sized
from typing import Any, Literal, cast

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from ...checkpoint import rng
from ...config import Section, bounded
from ...errors import SettingsError, UsageError
from ..device import Place
from ..seeding import generator
from .gathered import collate
from .sampling import EpochBatches, share
from .streaming import Streamed
from .transfer import tensors
from .worker_signals import obey_only

Start = Literal["auto", "fork", "spawn", "forkserver"]

# Salts of the loaders' own generators: what one draws must not move the other.
_TRAIN, _VALIDATION = 1, 2
# So many pickled bytes without an error, and the rest will do too.
_LOOK = 1 << 26


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings(Section):
    """How data is loaded."""

    batch: int = bounded(32, 1)  # samples per micro-step over all ranks
    workers: int | Literal["auto"] = dataclasses.field(
        default="auto", metadata={"low": 0, "high": math.inf}
    )  # processes that load, per rank
    threads: int | Literal["auto"] = dataclasses.field(
        default="auto", metadata={"low": 1, "high": math.inf}
    )  # torch threads of each worker; of this process where there are no workers
    prefetch: int = bounded(2, 1)  # batches each worker makes ahead
    pin: bool = True  # pinned memory, where the model is on a GPU
    persistent: bool = True  # workers live from epoch to epoch
    shuffle: bool = True
    drop_last: bool = False
    chunk: int | None = bounded(None, 1)  # samples read at once, of data larger than memory
    chunk_mb: float | None = bounded(None, 0.0, above=True)  # a chunk is made smaller to fit
    timeout: float = bounded(0.0, 0.0)  # seconds a batch may take in a worker; 0: any time
    start: Start = "auto"  # how workers are started


def make_loader(
    dataset: Dataset[Any],
    settings: DataSettings,
    place: Place,
    *,
    train: bool,
    seed: int,
    workers: int,
    collate_fn: Callable[[Any], Any] | None = None,
    compiled: bool = False,
    threads: int = 1,
) -> Loader:
    """A loader of this rank's batches.

    Args:
        dataset: map-style or iterable. An iterable one of your own has to skip what other
            ranks and workers take; ``Streamed`` does.
        settings: the section ``data``.
        place: this rank.
        train: shuffled, and equal numbers of batches on all ranks; for validation in order, and
            every sample exactly once over all ranks.
        seed: decides the order and what workers draw; the loop's own random numbers stay out.
        workers: how many processes load; 0: this one does.
        collate_fn: makes a batch of samples; torch's own by default.
        compiled: the model is compiled, by threads that must not be forked.
        threads: torch threads of each worker.
    """
    own = share(settings.batch, place.world)
    options: dict[str, Any] = {}
    if isinstance(dataset, IterableDataset):
        if isinstance(dataset, Streamed):
            chunk = chunk_of(dataset, settings)
            dataset = dataset.joined(
                place, own, seed=seed, train=train, chunk=chunk, shuffle=settings.shuffle
            )
        drop_last = train and settings.drop_last
        if isinstance(dataset, Streamed) and dataset.gathers:
            dataset = dataset.in_batches(drop_last=drop_last)
            if train and not len(dataset):
                raise _no_batch(dataset.held or 0, settings, place)
            options["batch_size"] = None
        else:
            options |= {"batch_size": own, "drop_last": drop_last}
    else:
        options["batch_sampler"] = _batches(dataset, settings, place, train=train, seed=seed)
    why = ""
    if workers:
        start, why = start_method(settings.start, (dataset, collate_fn), compiled=compiled)
        options |= {
            "multiprocessing_context": _context(start),
            "prefetch_factor": settings.prefetch,
            "persistent_workers": settings.persistent,
            "timeout": settings.timeout,
            "worker_init_fn": _WorkerStart(threads),
        }
    salt = _TRAIN if train else _VALIDATION
    loader = Loader(
        dataset,
        num_workers=workers,
        collate_fn=collate_fn or collate,
        pin_memory=settings.pin and place.device.type == "cuda" and torch.cuda.is_available(),
        generator=generator(seed, salt, place.rank),
        **options,
    )
    loader.why = why
    return loader


class Loader(DataLoader[Any]):
    """A ``DataLoader`` that works on the CPU, whatever the default device is."""

    why = ""
    """Why the workers are started the way they are; empty without workers."""
    drew: Callable[[Any, Any], None] | None = None
    """Told the indices of every batch, with its iterator, before it is made."""

    def __iter__(self) -> _BaseDataLoaderIter:
        with on_cpu():
            return super().__iter__()

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if not self.num_workers:
            return _LoadHere(self)
        self.check_worker_number_rationality()
        return _LoadInWorkers(self)

    def set_epoch(self, epoch: int) -> None:
        """Tell the epoch to whoever orders the samples; before the loop over it begins."""
        for part in (self.batch_sampler, self.sampler, self.dataset):
            set_epoch = getattr(part, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)

    def close(self) -> None:
        """End workers that would last; a later loop starts new ones."""
        iterator = self._iterator
        self._iterator = None
        if isinstance(iterator, _MultiProcessingDataLoaderIter):
            iterator._shutdown_workers()


class _TellsIndices(_BaseDataLoaderIter):
    """Says which samples it is about to load, as ``holdfast run`` has every loader say."""

    def __init__(self, loader: Loader) -> None:
        self._drew = loader.drew
        super().__init__(loader)

    def _next_index(self) -> Any:
        indices = super()._next_index()
        if self._drew is not None:
            self._drew(self, indices)
        return indices


class _LoadHere(_TellsIndices, _SingleProcessDataLoaderIter):
    def _next_data(self) -> Any:
        with on_cpu():
            return super()._next_data()


class _LoadInWorkers(_TellsIndices, _MultiProcessingDataLoaderIter):
    def _next_data(self) -> Any:
        with on_cpu():
            return super()._next_data()


def on_cpu() -> contextlib.AbstractContextManager[Any]:
    """What is made inside lies on the CPU; costs nothing where no other default was set."""
    if torch.get_default_device().type == "cpu":
        return contextlib.nullcontext()
    return cast(contextlib.AbstractContextManager[Any], torch.device("cpu"))


class _WorkerStart:
    """What a worker does first."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._owner = os.getpid()

    def __call__(self, worker: int) -> None:
        # The default device needs no word: a forked worker was forked inside ``on_cpu``.
        torch.set_num_threads(self._threads)
        obey_only(self._owner)


def chunk_of(dataset: Any, settings: DataSettings) -> int | None:
    """Samples in a chunk: as many as asked for, as far as they fit into ``chunk_mb``."""
    asked = settings.chunk or getattr(dataset, "chunk", None)
    if settings.chunk_mb is None:
        return asked
    fits = max(1, int(settings.chunk_mb * 1e6 / max(1, sample_bytes(dataset))))
    return fits if asked is None else min(asked, fits)


def sample_bytes(dataset: Any) -> int:
    """Memory of the tensors in the first sample, 0 where there is none; keeps the RNG state."""
    rng_state = rng.state()
    try:
        first = dataset.first() if isinstance(dataset, Streamed) else dataset[0]
    except (StopIteration, IndexError):
        return 0
    finally:
        rng.put_back(rng_state)
    return sum(tensor.nbytes for tensor in tensors(first))


def start_method(given: Start, sent: Any, *, compiled: bool = False) -> tuple[str, str]:
    """How to start workers, and why in one line.

    Args:
        given: what the user asked for.
        sent: what workers started afresh have to be sent: the dataset and its like.
        compiled: whether torch.compile is used.
    """
    known = multiprocessing.get_all_start_methods()
    if given != "auto":
        if given not in known:
            raise SettingsError(
                f"data.start is {given}, which this system cannot; use {' or '.join(known)}"
            )
        return given, f"{given}: data.start says so"
    if "fork" not in known or sys.platform == "darwin":
        return "spawn", "spawn: forked processes are not safe on this system"
    if not compiled:
        # Also beside CUDA, as torch does: a worker makes batches on the CPU, and a server would
        # import the user's script again, which many are not written for.
        return "fork", "fork: the fastest, and nothing here forbids it"
    why = "torch.compile keeps threads and processes that must not be forked"
    trouble = _cannot_be_sent(sent)
    if trouble:
        return "fork", f"fork, although {why}: the dataset cannot be pickled ({trouble})"
    return "forkserver", f"forkserver: {why}"


def _batches(
    dataset: Any, settings: DataSettings, place: Place, *, train: bool, seed: int
) -> EpochBatches:
    if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise UsageError(
            f"a {type(dataset).__name__} cannot be loaded: it is no IterableDataset and has no "
            "__len__ and __getitem__; give it these, or make a DataLoader of your own"
        )
    batches = EpochBatches(
        len(dataset),
        settings.batch,
        place,
        shuffle=train and settings.shuffle,
        seed=seed,
        drop_last=settings.drop_last,
        every=not train,
        chunk=chunk_of(dataset, settings),
    )
    if train and not len(batches):
        raise _no_batch(len(dataset), settings, place)
    return batches


def _no_batch(samples: int, settings: DataSettings, place: Place) -> SettingsError:
    return SettingsError(
        f"{samples} samples make no batch of data.batch={settings.batch} over "
        f"{place.world} ranks{' with data.drop_last' * settings.drop_last}; "
        "set a smaller data.batch or give more samples"
    )


def _context(start: str) -> Any:
    context = multiprocessing.get_context(cast(Any, start))
    if start == "forkserver":
        # Imported once, in the server: each worker would spend seconds on it.
        context.set_forkserver_preload(["__main__", "torch"])
    return context


def _cannot_be_sent(sent: Any) -> str:
    """Why something cannot be pickled; empty when it can, as far as a bounded check shows."""
    try:
        _Look(_Nowhere(), pickle.HIGHEST_PROTOCOL).dump(sent)
    except _Enough:
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


class _Enough(Exception):
    """So much was pickled that the rest is taken for granted."""


class _Look(pickle.Pickler):
    """Pickles all but the numbers of tensors, which need no check and may be gigabytes."""

    def reducer_override(self, obj: Any) -> Any:
        return (object, ()) if isinstance(obj, torch.Tensor) else NotImplemented


class _Nowhere(io.RawIOBase):
    """Counts what is written to it."""

    def __init__(self) -> None:
        self._size = 0

    def write(self, data: Any, /) -> int:
        size = len(data) if isinstance(data, bytes | bytearray) else memoryview(data).nbytes
        self._size += size
        if self._size > _LOOK:
            raise _Enough
        return size
