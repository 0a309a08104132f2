"""Which line of a dataset keeps the loader's workers busy: a ``loader_times`` event.

Threads in the workers know (``worker_samples``). Where they do not, and it is allowed, a few
samples are made again in this process, for half a second or one sample; the RNG state of Python,
numpy and torch is restored afterwards.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from time import perf_counter
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from ...probes.batches import LoaderBatches
from ...records.lines import TimedLoader
from ...run.host_cores import cores_here
from . import worker_samples
from .line_times import LineTimes
from .loop_clock import LoopLoader
from .measured_lines import MeasuredLines
from .profiles import (
    LoaderLook,
    ProfiledLine,
    Spot,
    line_of,
)
from .step_times import StepTimes

# Steps for which a late batch is waited for; lines that are written down.
_HUNT = 48
_LINES = 16
# Seconds in which samples are made, and how many at most.
_SECONDS = 0.5
_SAMPLES = 64


class LoaderProfiler:
    """One look at a loader with workers, when a batch has come late.

    Args:
        times: of all steps.
        fetch: samples may be made again in this process.
    """

    def __init__(self, times: StepTimes, *, fetch: bool) -> None:
        self._times = times
        self._may_fetch = fetch
        self._rare = times.skewed()
        self._steps = 0
        self._indices: list[Any] = []
        self._asks: Spot = ("", 0)

    def fetched(self, iterator: Any, frame: FrameType) -> None:
        """The loop has its next batch."""
        self._asks = line_of(frame)
        latest = LoaderBatches.of(iterator).at_work()[-1:]
        self._indices = [i for batch in latest for i in batch.indices or ()]

    def late(self, waited: float) -> bool:
        """A step is over; whether it waited long enough to look at the loader."""
        self._steps += 1
        recent = [w for block in list(self._times.blocks)[-4:] for w in block.waits]
        mean = max(recent) / 2 if self._rare else sum(recent) / len(recent)
        return waited >= mean or self._steps >= _HUNT

    def look(self, loop_loader: LoopLoader, lines: LineTimes) -> TimedLoader:
        """What the event says; without lines where nobody has seen any."""
        source, places = loop_loader.source, MeasuredLines()
        pids = [worker.pid for worker in getattr(source, "_workers", ())]
        look = worker_samples.look(pids, self._times.middle, loop_loader.batch) or LoaderLook()
        made = look.made
        # Only samples that are made here show which of them is slow.
        if self._may_fetch and (not look.samples or self._rare):
            look = make_samples(source, self._indices, lines) or LoaderLook()
        index, slowest = max(look.samples, key=lambda sample: sample[1], default=(None, 0.0))
        return TimedLoader(
            rare=self._rare,
            times=self._times.measured(),
            workers=len(pids),
            passes=loop_loader.passes,
            samples=len(look.samples),
            per_sample=round(look.per_sample, 8),
            made=None if made is None else round(made, 8),
            cores=cores_here(),
            slowest=(None if index is None else str(index), round(slowest, 8)),
            lines=tuple(places.line(line) for line in look.lines[:_LINES]),
            asks=places.line(ProfiledLine((self._asks,))),
            may_fetch=self._may_fetch,
            **places.reported(),
        )


@contextlib.contextmanager
def _random_states() -> Iterator[None]:
    python, numbers, tensors = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)
        torch.set_rng_state(tensors)


def make_samples(iterator: Any, indices: Sequence[Any], times: LineTimes) -> LoaderLook | None:
    """Make these samples of a loader's dataset again; None where there are none."""
    found, made = LoaderLook(), list[Any]()
    with _random_states():
        times.begin(sys._getframe())
        try:
            began = before = perf_counter()
            for index, sample in _samples(iterator._dataset, indices):
                now = perf_counter()
                found.samples.append((index, now - before))
                made.append(sample)
                if now - began > _SECONDS:
                    break
                before = now
            if made and iterator._auto_collation:
                iterator._collate_fn(made)
        finally:
            times.step(0.0)
            times.stop()
    found.lines = times.profile().lines
    for line in found.lines:
        line.seconds /= max(1, len(made))
    return found if made else None


def _samples(dataset: Any, indices: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    """Samples with their indices; those of a stream from its beginning, without."""
    if isinstance(dataset, IterableDataset):
        return zip(repeat(None, _SAMPLES), copy.copy(dataset), strict=False)
    return ((index, dataset[index]) for index in indices[:_SAMPLES])
