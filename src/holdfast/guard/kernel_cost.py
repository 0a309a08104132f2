"""What the guard costs where a device computes, looked at on few steps.

Its kernels are timed. And where the device is behind the host, so that it has not come to the
first of them when the host is through with all of ours, that host time costs nothing: the next
kernels of the script have to wait for the device anyway. A launch may even wait for room in a full
queue, for as long as the device needs for other kernels; that is counted as ours by the clock.
Where the device is not behind it waits for the host between our kernels: what is the host's time
is counted already, and only what the device takes longer comes on top of it.
"""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

import torch

from ..probes.step_record import StepRecord
from ..probes.timing import EventPool

EVERY = 64
"""The kernels are timed on one step in this many."""


class Began(NamedTuple):
    """Where ours begins, on the device and on the host."""

    event: torch.cuda.Event
    time: float


class KernelCost:
    """Pairs of events around our kernels, read when the device is past them."""

    def __init__(self) -> None:
        self.hidden = False
        """Whether host time of ours cost nothing when it was looked at last."""
        self._events = EventPool()

    def begin(self) -> Began | None:
        """Start timing; None without a device to time."""
        if not torch.cuda.is_initialized():
            return None
        return Began(self._events.record(), perf_counter())

    def end(self, record: StepRecord, began: Began) -> None:
        """Stop timing."""
        behind, hosts = not began.event.query(), perf_counter() - began.time
        if not record.cost_events:
            self.hidden = behind
            record.row["guard_hidden"] = float(behind)
        pair = began.event, self._events.record(), 0.0 if behind else hosts
        record.cost_events = (*record.cost_events, pair)

    def seconds(self, record: StepRecord) -> float:
        """What was timed of a step; its events are used again."""
        done = [(a, b, hosts) for a, b, hosts in record.cost_events if b.query()]
        seconds = sum(max(0.0, a.elapsed_time(b) / 1e3 - hosts) for a, b, hosts in done)
        self._events.give_back([event for a, b, _ in done for event in (a, b)])
        return seconds
