"""Do the loader's workers grow? Reads one of them now and then, and looks for the cause."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

from ...records.base import Kind
from ...records.memory import WorkerContainer, WorkerMemory
from ..throughput import worker_samples
from . import worker_lengths

_EVERY = 8
_READINGS = 5
# Seconds between two looks of a worker at itself, and looks for which an answer is waited for.
_APART = 0.05
_PATIENCE = 16
# Bytes per batch of all workers that are worth a measurement, and measurements of one run.
_LEAST = 12 << 10
_RECORDS = 32


class Workers:
    """The workers of the loader that is at work.

    Args:
        record: takes a measurement.
    """

    def __init__(self, record: Callable[[Kind], None]) -> None:
        self._record = record
        self._iterator: Callable[[], Any] = lambda: None
        self._fetched = 0
        self._readings: list[tuple[int, Private]] = []
        self._found: WorkerContainer | None = None
        self._began, self._asked = 0.0, math.inf
        self._records = 0
        self._due = 0
        """Batches from which on growth is measured again."""

    def fetched(self, iterator: Any) -> None:
        """A batch has come."""
        if self._records >= _RECORDS or getattr(iterator, "_workers", None) is None:
            return
        if iterator is not self._iterator():
            self._iterator = weakref.ref(iterator)
            self._fetched, self._readings = 0, []
            self._began = perf_counter()
        self._fetched += 1
        if self._fetched % _EVERY:
            return
        private = _private(iterator._workers[0].pid)
        if private is None:
            self._records = _RECORDS
            return
        self._readings.append((self._fetched, private))
        # What comes first is what any worker needs: imports, the first pages.
        recent = self._readings[1:][-_READINGS:]
        # Pages of a file that only this worker maps are private too, and nobody's leak; anonymous
        # pages are counted by their share, which moves when others let go of them.
        grown = [min(b[1].dirty - a[1].dirty, b[1].anonymous - a[1].anonymous)
                 for a, b in pairwise(recent)]  # fmt: skip
        if len(recent) < _READINGS or min(grown) <= 0 or self._fetched < self._due:
            return
        rises = [more / (b[0] - a[0]) for more, (a, b) in zip(grown, pairwise(recent), strict=True)]
        # Below half of what detectors accuse by default nobody asks for the cause.
        if min(rises) * len(iterator._workers) < _LEAST:
            return
        self._found = self._found or self._look(iterator)
        if self._found is not None:
            self._write(iterator, rises, self._found)

    def _look(self, iterator: Any) -> WorkerContainer | None:
        """What grows; None while a worker that was asked has no answer."""
        pid, dataset = iterator._workers[0].pid, iterator._dataset
        now = perf_counter()
        # It must have made something in between.
        batch = (now - self._began) / self._fetched * len(iterator._workers)
        apart = max(_APART, 1.5 * batch)
        self._asked = min(self._asked, now)
        if worker_samples.order_growth(pid, apart) and now - self._asked < _PATIENCE * apart:
            answer = worker_samples.growth(pid)
            return None if answer is None else worker_lengths.container(dataset, answer)
        return worker_lengths.container(dataset, {}).replace(looked=False)

    def _write(self, iterator: Any, rises: list[float], found: WorkerContainer) -> None:
        workers, whole = len(iterator._workers), batches(iterator)
        self._records += 1
        self._due = self._fetched + self._fetched // 4
        if whole:
            self._due = min(self._due, (self._fetched // whole + 1) * whole)
        record = WorkerMemory(
            bytes=workers * sum(rises) / len(rises),
            least_bytes=workers * min(rises),
            workers=workers,
            steps=self._fetched,
            pass_batches=whole,
            **vars(found),
        )
        self._record(record)


def batches(iterator: Any) -> int:
    """Batches in one pass over the data; 0 for a stream."""
    try:
        return len(iterator._index_sampler)
    except (AttributeError, TypeError):
        return 0


class Private(NamedTuple):
    """Memory of a process that is its own, in bytes."""

    dirty: int
    """Written pages that no other process maps, those of files included."""
    anonymous: int
    """Pages of no file; those that others map too count by their share."""


def _private(pid: int | None) -> Private | None:
    """What a process has for itself; None where the system does not tell."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as table:
            lines = [line.split() for line in table.readlines()[1:]]
            found = {line[0]: int(line[1]) << 10 for line in lines}
    except (OSError, ValueError, IndexError):
        return None
    dirty = found.get(b"Private_Dirty:")
    # Kernels before 5.3 do not tell anonymous pages apart.
    return None if dirty is None else Private(dirty, found.get(b"Pss_Anon:", dirty))
