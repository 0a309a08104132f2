"""Throughput watcher: waits for data, slowdowns, stalls, host reads, recompilations.

Each step is timed. What stands out orders a look at a few steps (``profile_orders``), and what that
measures becomes an Event: ``line_times``, ``loader_times``, ``tensor_reads``, ``recompile``.
"""

from __future__ import annotations

import sys
from time import thread_time
from types import FrameType
from typing import Any

from ...config import Settings
from ...probes.ranks import ranks
from ...probes.step_record import StepRecord
from ...records.lines import Purpose
from ..aside import aside
from ..training import Training
from . import host_reads
from .line_profiler import LineProfiler
from .line_times import LineTimes
from .loader_profiler import LoaderProfiler
from .loop_clock import LoopClock, LoopLoader
from .profile_orders import ProfileOrders
from .profiles import StepProfile
from .recompiles import Recompiles
from .step_times import StepTimes

# Times what the trace takes for as many lines where caches are warm: 2.1 to 6.8 measured, most in
# loops that call a small model very often. Whatever else makes a step under it long is the script's
# own: a stall, an evaluation.
_COLD = 5.0


class TimeWatch:
    """Notices, orders profiles and records what they measured."""

    def __init__(self, settings: Settings, training: Training) -> None:
        self._may_fetch = settings.watchers.fetch_samples
        self._training = training
        self._loop_loader = LoopLoader()
        self._clock = LoopClock(self._loop_loader)
        self._times = StepTimes()
        self._orders = ProfileOrders()
        self._lines = LineTimes()
        self._recompiles = Recompiles()
        self._optimizer = 0
        self._ordered: LineProfiler | None = None
        self._profile: LineProfiler | LoaderProfiler | None = None
        self._reading = False
        """Reads of tensors are being counted."""
        self._reference: StepProfile | None = None
        self._registered = 0
        """Hooks at the last look."""

    # ------------------------------------------------------------------ moments

    def fetched(self, iterator: Any, frame: FrameType) -> None:
        """The loop has its next batch."""
        self._loop_loader.fetched(iterator)
        if isinstance(self._profile, LoaderProfiler):
            self._profile.fetched(iterator, frame)

    def step_ended(self, record: StepRecord, frame: FrameType) -> None:
        """A step is over."""
        if self._clock.ended(record, frame):
            self._took(record, frame)

    def goes_on(self, frame: FrameType) -> None:
        """All that is ours is done after a step: the clock of the loop runs again."""
        if self._clock.passing:
            return
        if self._ordered is not None:
            profile, self._ordered = self._ordered, None
            if profile.begin(frame, self._clock):
                self._profile = profile
        self._clock.runs(self._profile is None and sys.gettrace() is not None)

    @property
    def busy(self) -> bool:
        """Whether something is being looked into, or about to be."""
        waits = self._reading or self._clock.step <= self._orders.foreseen
        return waits or self._profile is not None or self._ordered is not None

    def pauses(self) -> None:
        """Steps have gone by unseen: the next one is the first again."""
        self._clock.pauses()

    def close(self) -> None:
        """The process ends."""
        self._lines.stop()
        host_reads.end()
        self._clock.close()

    # ------------------------------------------------------------------ every step

    def _took(self, record: StepRecord, frame: FrameType) -> None:
        clock = self._clock
        if self._reading:
            self._reading = False
            if (read_times := host_reads.end()) is not None:
                reported = read_times.measured(self._times.measured())
                self._training.record(reported)
        if record.opt != self._optimizer:
            self._new_stage(record.opt)
        if not self._recompiles.attached and "torch._dynamo" in sys.modules:
            self._recompiles.attach()
        if self._recompiles.news:
            for compiled in self._recompiles.look():
                reported = compiled.measured(self._times.seconds)
                self._training.record(reported)
            return  # a step with a compilation in it says nothing about the others
        if self._profile is not None:
            self._examined(self._profile, record, frame)
            return
        if clock.begins:
            return
        full = self._times.add(clock.step, clock.wall, clock.busy, clock.waited, clock.queued)
        if self._orders.foreseen == clock.step:
            self._order(self._orders.order("stall", self._times), foreseen=True)
        elif full:
            fed, known = self._loop_loader.used, self._reference is not None
            workers = self._loop_loader.workers > 0
            due = self._orders.due
            if profile := due(self._times, clock.step, fed=fed, known=known, workers=workers):
                self._order(profile)

    def _new_stage(self, optimizer: int) -> None:
        """Another optimizer is at work, or a turn is another one: nothing is known of its steps."""
        self._optimizer = optimizer
        self._times = StepTimes(self._times.own)
        self._reference = None
        if self._profile is not None:
            self._lines.stop()
        self._ordered = self._profile = None
        self._clock.home = None
        self._orders.foreseen = 0

    def _order(self, purpose: Purpose, *, foreseen: bool = False) -> None:
        if purpose == "waits" and self._loop_loader.workers:
            self._profile = LoaderProfiler(self._times, fetch=self._may_fetch)
        else:
            self._ordered = LineProfiler(purpose, self._lines, self._times, foreseen=foreseen)
            self._orders.begins(purpose)

    # ------------------------------------------------------------------ what was measured

    def _examined(
        self, profile: LineProfiler | LoaderProfiler, record: StepRecord, frame: FrameType
    ) -> None:
        if isinstance(profile, LineProfiler):
            more = max(0.0, self._clock.busy - self._times.typical_busy)
            over = profile.step(self._clock, frame)
            self._orders.pay(profile.purpose, min(more, _COLD * self._lines.extra))
            if over:
                self._profile = None
                began = thread_time()
                with aside():
                    self._looked_at_lines(profile, record)
                self._orders.pay(profile.purpose, thread_time() - began)
        elif profile.late(self._clock.waited):
            self._profile = None
            if self._loop_loader.source is not None and ranks() == 1:
                reported = profile.look(self._loop_loader, self._lines)
                self._training.record(reported)

    def _looked_at_lines(self, profile: LineProfiler, record: StepRecord) -> None:
        if self._clock.home is None and profile.home is not None:
            self._new_stage(record.opt)
            self._clock.home = profile.home
            return
        now = profile.measure(len(record.positions), self._training.known_models)
        if now is not None:
            # Every step has parameters: 0 says that nobody has counted.
            if now.counts.parameters:
                before, self._registered = self._registered, now.counts.registered
                now.counts = now.counts.replace(registered_before=before)
            reported = profile.measured(now, self._reference, self._loop_loader, ranks())
            self._training.record(reported)
        # The first look shows ordinary steps, whatever has ordered it: one more would say no more.
        first = self._reference is None and profile.ordinary
        if first:
            self._reference = now
        if first or profile.purpose == "look":
            self._reading = host_reads.begin(profile.profile, profile.turn)
