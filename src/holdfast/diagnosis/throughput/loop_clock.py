"""The clock of the training loop: where a step ends, how long it took, how long it waited."""

from __future__ import annotations

import weakref
from time import perf_counter, thread_time
from types import FrameType
from typing import Any

from ...probes.step_record import StepRecord
from .profiles import Spot, line_of
from .run_queue import RunQueue, Threads

# Seconds of ours in a step, and their share of it, from which on it is not like the others.
_OURS = 0.004
_OURS_SHARE = 0.3
# Seconds, a share of a step, and times what is usual (backward on a device has its own thread) that
# the loop's thread may be without the processor before somebody asks who had it: the answer takes
# longer than all else here. It is asked for every so many steps.
_IDLE = 1e-4
_IDLE_SHARE = 0.01
_IDLE_USUAL = 1.25
_ASKED = 8


class LoopLoader:
    """The loader that the loop is fed by."""

    def __init__(self) -> None:
        self.epochs: set[int] = set()
        """Steps that began one."""
        self._source: weakref.ref[Any] | None = None
        self._iterator = 0
        self._trained_on = 0
        self._trained_source: weakref.ref[Any] | None = None
        self._fetches = 0
        self._fed = 0
        self._unfed = 0

    def fetched(self, iterator: Any) -> None:
        """The loop has its next batch."""
        self._fetches += 1
        # A new one may stand where the last one stood.
        if id(iterator) != self._iterator or (self._source and self._source() is None):
            self._iterator = id(iterator)
            try:
                self._source = weakref.ref(iterator)
            except TypeError:
                self._source = None

    def stepped(self, step: int) -> bool:
        """A step is over; True when it was the first one with its workers."""
        begins = False
        if self._iterator != self._trained_on or self._source != self._trained_source:
            # Validation fetches too, in a loop that may make its batches itself.
            if self.used:
                self.epochs.add(step)
            begins = not self._trained_on or (self.used and self.workers > 0)
            self._trained_on, self._trained_source = self._iterator, self._source
        if self._fetches:
            self._fed += 1
        else:
            self._unfed += 1
        self._fetches = 0
        return begins

    @property
    def used(self) -> bool:
        """Whether most steps are fed by it."""
        return self._fed > self._unfed

    @property
    def source(self) -> Any:
        """The iterator at work; None where it is gone."""
        return self._source() if self._source is not None else None

    @property
    def workers(self) -> int:
        """How many it has."""
        return int(getattr(self.source, "_num_workers", 0) or 0)

    @property
    def batch(self) -> int:
        """Samples that it puts into a batch; 1 where it does not say."""
        sampler = getattr(self.source, "_index_sampler", None)
        return int(getattr(sampler, "batch_size", 1) or 1)

    @property
    def passes(self) -> int:
        """Over the data, this one included."""
        return 1 + len(self.epochs)


class LoopClock:
    """Times the turns of the loop that takes the steps.

    What it says of the last one stands in attributes: an object for each would cost every step.
    """

    def __init__(self, loop_loader: LoopLoader) -> None:
        self.passing = False
        """The step that has just ended is not the last one of its turn."""
        self.home: Spot | None = None
        """The line that ends a turn, where steps are taken at several."""
        self.step = -1
        self.wall = 0.0
        self.busy = 0.0
        """Processor time of the loop's own."""
        self.waited = 0.0
        self.queued = 0.0
        """Seconds in which other processes had the processor."""
        self.begins = False
        """It says nothing about others: workers were started, or we did a lot in it."""
        self._loop_loader = loop_loader
        self._queue = RunQueue()
        self._last = 0.0
        self._used = 0.0
        self._idle = 0.0
        """Seconds that its thread usually waits in a step, for anything but data."""
        self._traced = False

    def ended(self, record: StepRecord, frame: FrameType) -> bool:
        """A step is over; False where no time is known for it."""
        now = perf_counter()
        step, row = record.step, record.row
        # One turn of the loop may take several steps: with other optimizers, or at other lines.
        if step == self.step or (self.home is not None and line_of(frame) != self.home):
            self.passing = True
            return False
        self.passing = False
        self.wall = wall = now - self._last
        waited = row["data_wait"]
        self.waited = waited if waited == waited else 0.0
        ours = row["guard"] > _OURS and row["guard"] > _OURS_SHARE * wall
        self.begins = self._loop_loader.stepped(step) or self._traced or ours
        self.busy = thread_time() - self._used
        # While this thread had the processor no other one did.
        idle = wall - self.busy
        asks = idle > _IDLE + _IDLE_SHARE * wall + _IDLE_USUAL * self._idle or step % _ASKED == 0
        self.queued = max(0.0, min(idle, self._queue.waited())) if asks else 0.0
        # What others took is not usual, nor is data; and less is believed at once.
        own = idle - max(self.queued, self.waited)
        self._idle = max(0.0, min(own, self._idle + (own - self._idle) / _ASKED))
        first = self.step < 0
        self.step = step
        return not first

    def in_line(self) -> Threads:
        """Seconds in which others had the processor so far, by thread of this process."""
        return self._queue.of_threads()

    def runs(self, traced: bool) -> None:
        """All that is ours is done; ``traced``: by somebody else, and all is slow."""
        self._traced = traced
        self._used = thread_time()
        self._last = perf_counter()

    def pauses(self) -> None:
        """Steps go by unseen: the next one is the first again."""
        self.step = -1

    def close(self) -> None:
        """Time no more."""
        self._queue.close()
