"""Memory watcher: cheap signs on every step, scans on few, line traces for a leak.

It measures and records; what of it is a fault, detectors decide (MEM001 to MEM008).
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from torch import Tensor

from ...probes.step_record import StepRecord
from ...records.memory import GraphChain, MemoryRanOut, ValueGrowth
from ...run.host_memory import ran_out
from ..training import Training
from . import footprint, held_graphs
from .evaluation import Evaluations
from .graph_carriers import EARLY, EarlyStates
from .graphs import Markers, newest, now
from .growth import GrowthWatch
from .heap import Heap
from .parts import MemoryParts
from .value_sizes import Timeline
from .workers import Workers, batches

# Steps between two readings of the signs, and steps a graph may stay alive without a question.
_EVERY = 8
_OLD = 10
# Bytes per step that are a sign of growth: over a short stretch and over a long one.
_STEEP = 192 << 10
_SLOW = 24 << 10
# Steps in which the heap is read more often, and the share of the time that this may take then and
# later: the C library goes through all that is free, which took 40 to 180 us.
_YOUNG = 64
_YOUNG_SHARE, _SHARE = 0.01, 0.005
# Backward passes without a step before they are taken for steps.
_WITHOUT = 8


class MemoryWatch:
    """Notices, orders profiles and records what they measured."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.evaluation = Evaluations(training.record, training.known_models)
        self._workers = Workers(training.record)
        self._early = EarlyStates()
        self._parts = MemoryParts(training)
        self._pass_steps = 0
        self._iterator = 0
        self._step = -1
        self._opt = -1
        self._ordered = 0
        self._passes = 0
        self._begin()

    def _begin(self) -> None:
        self._timeline = Timeline()
        self._markers = Markers()
        self._heap = Heap()
        self._growth = GrowthWatch(self._timeline, self._grown, lambda: self._pass_steps)

    def backward(self, loss: object) -> None:
        """``backward`` is about to be called on ``loss``."""
        self.evaluation.backward(loss)
        self._markers.backward(loss, self._step + 1)
        if not isinstance(loss, Tensor):
            return
        if self._growth.graph_carriers.waiting:
            self._growth.graph_carriers.backward(loss)
        if self._early.names:
            self._early.backward(loss, self._timeline)
        if self._opt < 0:
            self._passes += 1
            if self._passes > _WITHOUT:
                # A loop without an optimizer of torch: its backward passes beat the time.
                self._beat(self._passes - _WITHOUT - 1, sys._getframe())

    def fetched(self, iterator: Any, frame: FrameType) -> None:
        """The loop has its next batch."""
        self.evaluation.fetched()
        self._workers.fetched(iterator)
        if id(iterator) != self._iterator:
            self._iterator = id(iterator)
            self._pass_steps = max(self._pass_steps, batches(iterator))

    def step_ended(self, record: StepRecord, frame: FrameType) -> None:
        """A step is over."""
        step = record.step
        self._early.survived()
        # One optimizer beats the time; another takes over only when it has stopped.
        other = record.opt != self._opt and step < self._step + 4
        if self._opt >= 0 and (step == self._step or other):
            return
        if self._opt < 0 and self._passes > _WITHOUT:
            self._begin()
        self._opt = record.opt
        if step < EARLY:
            self._early.step_ended(frame, len(self._training.optimizers()))
        self._beat(step, frame)

    def _beat(self, step: int, frame: FrameType) -> None:
        self._step = step
        self._timeline.ends(step, now())
        young = step < _YOUNG
        if step % (2 if young else 4) == 0:
            self._heap.sample(step, _YOUNG_SHARE if young else _SHARE)
        if step % _EVERY == 0 and step:
            self._read_signs(step)
        self._growth.tick(step, frame)
        self._parts.step_ended(step)
        self.evaluation.step_ended(step, frame)

    @property
    def busy(self) -> bool:
        """Whether a line is being looked for."""
        return self._growth.busy or self.evaluation.open

    def close(self) -> None:
        """The process ends."""
        self._growth.close()
        self.evaluation.close()

    def last_words(self, error: BaseException) -> list[GraphChain | MemoryRanOut]:
        """What an error has to do with memory."""
        found: list[GraphChain | MemoryRanOut] = []
        if (chain := self._early.met(error)) is not None:
            found.append(chain)
        if ran_out(error):
            if (past := held_graphs.largest(error, self._timeline)) is not None:
                found.append(past.record(footprint.in_use()))
            found.append(footprint.arithmetic(error, self._training))
        return [record.replace(heap_slope=self._heap.slope()) for record in found]

    def _read_signs(self, step: int) -> None:
        oldest = self._markers.oldest()
        old = oldest is not None and step - oldest >= _OLD
        grows = self._heap.slope() > _STEEP or self._heap.slope(32) > _SLOW
        if old or grows or self._heap.device_slope() > _SLOW:
            self._ordered += 1
            # Signs that last are followed less and less often.
            if self._ordered & (self._ordered - 1) == 0:
                self._growth.order(step)

    def _grown(self, record: ValueGrowth | GraphChain, value: Any) -> None:
        built = self.evaluation.built(newest(value))
        record = record.replace(in_evaluation=built, heap_slope=self._heap.slope())
        self._training.record(record)
