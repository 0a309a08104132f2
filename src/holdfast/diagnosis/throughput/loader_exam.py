"""Which line of a dataset keeps the loader's workers busy: the data of a ``loader_times`` event."""

from __future__ import annotations

from types import FrameType
from typing import Any

from ...probes.batches import LoaderLedger
from . import loader_times, worker_samples
from .line_times import LineTimes
from .loop_clock import Feed
from .measured_lines import Places
from .profiles import (
    Line,
    LoaderLook,
    Spot,
    line_of,
)
from .step_times import StepTimes

# Steps for which a late batch is waited for; lines that are written down.
_HUNT = 48
_LINES = 16


class LoaderExam:
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
        latest = LoaderLedger.of(iterator).at_work()[-1:]
        self._indices = [i for batch in latest for i in batch.indices or ()]

    def late(self, waited: float) -> bool:
        """A step is over; whether it waited long enough to look at the loader."""
        self._steps += 1
        recent = [w for block in list(self._times.blocks)[-4:] for w in block.waits]
        mean = max(recent) / 2 if self._rare else sum(recent) / len(recent)
        return waited >= mean or self._steps >= _HUNT

    def look(self, feed: Feed, lines: LineTimes) -> dict[str, Any]:
        """What goes into the event; without lines where nobody has seen any."""
        source, places = feed.source, Places()
        pids = [worker.pid for worker in getattr(source, "_workers", ())]
        found = worker_samples.look(pids, self._times.middle, feed.batch)
        # Only samples that are made here show which of them is slow.
        if self._may_fetch and (found is None or self._rare):
            found = loader_times.look(source, self._indices, lines)
        look = found or LoaderLook()
        index, slowest = max(look.samples, key=lambda sample: sample[1], default=(None, 0.0))
        asks = Line(*self._asks, "", "", 0.0, 0.0, ())
        return {
            "rare": self._rare,
            "times": self._times.measured(),
            "workers": len(pids),
            "passes": feed.passes,
            "samples": len(look.samples),
            "per_sample": round(look.per_sample, 8),
            "collate": round(look.collate, 8),
            "slowest": [None if index is None else str(index), round(slowest, 8)],
            "lines": [places.line(line) for line in look.lines[:_LINES]],
            "asks": places.line(asks),
            "may_fetch": self._may_fetch,
            **places.data(),
        }
