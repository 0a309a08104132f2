"""Where the time of a step goes: data wait, copies, forward, backward, optimizer, other.

The marks are those of the loop itself, so an unmodified script needs no hook on its modules:

    next(loader) returns ─ forward ─ backward() begins ─ backward ─ backward() ends ─ other ─
    optimizer.step() begins ─ optimizer ─ step() ends ─ other ─ next(loader) is called ─ data wait

Without a loader everything between the end of a step and the next backward counts as forward.
Forward therefore includes the loss code; ``h2d`` (host time in ``.to(device)`` and ``.cuda()``
of CPU tensors) is taken out of it. So is ``collective`` out of every phase but backward: what is
left is time that a rank needs by itself, also where others wait for it in the forward pass (FSDP)
or reduce gradients by hand. On CUDA the phases between device marks come from pooled
events that are asked with ``query()`` and never waited for, on one step in eight, and on one in 32
after the first steps of a run whose steps are short (an event costs the host some microseconds, on
slow ones 50; on the steps between the phases are NaN); data wait is host time on both and there on
every step.
"""

from __future__ import annotations

from threading import get_ident
from time import perf_counter

import torch

# Beyond this many marks in one step (long accumulation) the rest is summed on the host clock.
_MOST_MARKS = 64
# Of how many steps one is timed by events, and of how many short ones after the first.
_EVERY = 8
_EVERY_SHORT = 32
_FIRST = 64
_SHORT = 0.02


class EventPool:
    """CUDA timing events, reused; making one costs more than recording one."""

    def __init__(self) -> None:
        self._free: list[torch.cuda.Event] = []

    def record(self) -> torch.cuda.Event:
        """An event recorded now on the current stream."""
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def give_back(self, events: list[torch.cuda.Event]) -> None:
        """Return events whose times have been read."""
        self._free.extend(events)


class Phases:
    """The clock of one loop; a mark closes the phase that has just ended."""

    def __init__(self) -> None:
        self.pool = EventPool()
        self.on_device = False
        self.idle = False
        """Whether the phases of this step are on a device and not timed: no mark is needed."""
        self.alone = False
        """Whether there is one rank; several must time the same steps."""
        self._steps = 0
        self._every = _EVERY
        self._since = perf_counter()
        self.last = perf_counter()
        self.guard = 0.0
        self.ours = False
        """Something of holdfast is running, and somebody counts its time."""
        self._began = False
        self._thread = get_ident()
        self.host: dict[str, float] = {}
        """Seconds of the step at work on the host's clock, by phase."""
        self._marks: list[tuple[str, torch.cuda.Event]] = []
        self._origin: torch.cuda.Event | None = None

    def runs(self, *, on_device: bool) -> None:
        """Where the step is decided, and with it by which clock its phases are timed."""
        self.on_device = on_device
        self.idle = False

    def mark(self, phase: str, now: float) -> None:
        """``phase`` ends at this time and the next one begins."""
        # What lies before the first mark belongs to no step.
        elapsed = now - self.last if self._began else 0.0
        self._began = True
        host = self.host
        host[phase] = host[phase] + elapsed if phase in host else elapsed
        self.last = now
        # Waiting for data is the host's.
        if self.on_device and phase != "data_wait":
            self._moment(phase)

    def _moment(self, phase: str) -> None:
        if len(self._marks) >= _MOST_MARKS:
            return
        place = self._steps % self._every
        # The last mark of the step before is where a timed step begins.
        timed = place == 0 or (place == self._every - 1 and phase == "optimizer")
        # In a graph that is being captured an event would become part of the graph.
        if timed and not torch.cuda.is_current_stream_capturing():
            self._marks.append((phase, self.pool.record()))

    def add(self, phase: str, seconds: float) -> None:
        """Count ``seconds`` measured elsewhere and keep them out of the running phase."""
        self.host[phase] = self.host.get(phase, 0.0) + seconds
        self.last += seconds

    def waited(self, seconds: float) -> None:
        """A collective took so long; one in a thread beside training (a checkpoint) is none."""
        if get_ident() == self._thread and not self.ours and not self.on_device:
            self.add("collective", seconds)

    def take_host(self) -> dict[str, float]:
        """Close a step whose phases were all measured on the host's clock."""
        host, self.host = self.host, {}
        host["guard"], self.guard = self.guard, 0.0
        self._steps += 1
        self._thread = get_ident()
        return host

    def take(self) -> Timed:
        """Close a step on a device and hand out what is on its way."""
        self.host["guard"], self.guard = self.guard, 0.0
        if self._steps % self._every == 0:
            timed = Timed(self.pool, self.host, self._origin, self._marks)
            self._origin = None
            if self._steps >= _FIRST:
                self._pace()
        else:
            timed = Timed(self.pool, self.host)
            self._origin = self._marks[-1][1] if self._marks else None
        self.host = {}
        self._marks = []
        self._steps += 1
        # The last mark of the step before a timed one is where that begins.
        self.idle = 0 < self._steps % self._every < self._every - 1
        return timed

    @property
    def stays_idle(self) -> int:
        """For how many steps no mark is needed."""
        return self._every - 1 - self._steps % self._every if self.idle else 0

    def take_idle(self) -> dict[str, float]:
        """Close a step on a device of which only the waiting for data was timed."""
        host, self.host = self.host, {}
        host["guard"], self.guard = self.guard, 0.0
        self._steps += 1
        self.idle = self._steps % self._every < self._every - 1
        return host

    def _pace(self) -> None:
        """Time fewer of them where steps are short."""
        seconds, self._since = perf_counter() - self._since, perf_counter()
        short = seconds < _SHORT * self._every and self.alone
        # Multiples of both: at the first of them the longer pace begins.
        self._every = _EVERY_SHORT if short and self._steps % _EVERY_SHORT == 0 else _EVERY


class Timed:
    """The phases of one step on a device; they are known once their events are."""

    def __init__(
        self,
        pool: EventPool,
        host: dict[str, float],
        origin: torch.cuda.Event | None = None,
        marks: list[tuple[str, torch.cuda.Event]] | None = None,
    ) -> None:
        self._pool, self._host, self._origin = pool, host, origin
        self._marks = marks or []

    @property
    def pending(self) -> bool:
        """Whether the device has yet to come to the end of the step."""
        return bool(self._marks) and not self._marks[-1][1].query()

    def seconds(self) -> dict[str, float]:
        """Seconds per phase. With events this must be called after the last one is done."""
        host = {k: self._host[k] for k in ("data_wait", "h2d", "guard") if k in self._host}
        if self._origin is None or not self._marks or self.pending:
            return host
        device: dict[str, float] = {}
        previous = self._origin
        for phase, event in self._marks:
            device[phase] = device.get(phase, 0.0) + previous.elapsed_time(event) / 1e3
            previous = event
        self._pool.give_back([self._origin, *(e for _, e in self._marks)])
        # On the device's clock the wait for data lies in the first phase after it.
        device["other"] = max(0.0, device.get("other", 0.0) - host.get("data_wait", 0.0))
        device["forward"] = max(0.0, device.get("forward", 0.0) - host.get("h2d", 0.0))
        return {**device, **host}
