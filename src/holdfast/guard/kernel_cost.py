"""What the guard costs where a device computes, looked at on few steps.

Its kernels are timed. And where the device is behind the host, so that it has not come to the
first of them when the host is through with all of ours, that host time costs nothing: the next
kernels of the script have to wait for the device anyway. A launch may even wait for room in a full
queue, for as long as the device needs for other kernels; that is counted as ours by the clock.
"""

from __future__ import annotations

import torch

from ..probes.step_record import StepRecord
from ..probes.timing import EventPool

EVERY = 64
"""The kernels are timed on one step in this many."""


class KernelCost:
    """Pairs of events around our kernels, read when the device is past them."""

    def __init__(self) -> None:
        self.hidden = False
        """Whether host time of ours cost nothing when it was looked at last."""
        self._events = EventPool()

    def begin(self) -> torch.cuda.Event | None:
        """Start timing; None without a device to time."""
        return self._events.record() if torch.cuda.is_initialized() else None

    def end(self, record: StepRecord, began: torch.cuda.Event) -> None:
        """Stop timing."""
        if not record.cost_events:
            self.hidden = not began.query()
            record.row["guard_hidden"] = float(self.hidden)
        record.cost_events = (*record.cost_events, (began, self._events.record()))

    def seconds(self, record: StepRecord) -> float:
        """What was timed of a step; its events are used again."""
        done = [(a, b) for a, b in record.cost_events if b.query()]
        seconds = sum(a.elapsed_time(b) for a, b in done) / 1e3
        self._events.give_back([e for pair in done for e in pair])
        return seconds
