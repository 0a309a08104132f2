"""Watchers for what no single step shows: leaks, slowdowns, stalls.

Two watchers, each cheap on nearly every step. What one of them notices starts an investigation,
whose result is an Event; detectors make findings of these. Where steps are so short that the guard
stays above its budget, they watch the first steps and rest most of the time from then on.
"""

from __future__ import annotations

import math
from types import FrameType
from typing import Any

from ..config import Settings
from ..probes.cost_budget import CostBudget
from ..probes.step_record import StepRecord
from .crash.swallowed import SwallowedErrors
from .memory.watcher import MemoryWatch
from .throughput.watcher import TimeWatch
from .training import Training

# Steps that are always watched; after that, of how many so many where the guard must be lean.
_FIRST = 256
_ROUND = 1024
_WATCHED = 128


class Watchers:
    """Both watchers of one process; None for one that nobody wants."""

    def __init__(self, settings: Settings, training: Training, budget: CostBudget) -> None:
        wanted = settings.watchers
        self.memory = MemoryWatch(training) if wanted.memory else None
        explains = wanted.time and settings.guard.explain
        self.time = TimeWatch(settings, training) if explains else None
        # Where no step comes there is no next one that an event could belong to.
        self.swallowed = SwallowedErrors(
            training.models,
            lambda record: training.record_at(training.iteration, record),
        )
        """Errors that a loop catches on every batch; asked where no step comes."""
        self.on = self.memory is not None or self.time is not None
        self.resumes = math.inf
        """The step from which on they watch again."""
        self.evaluates = False
        """``eval()`` was called and no backward pass has come since: the next one is told."""
        self._budget = budget
        self._rests = _FIRST

    def backward(self, loss: object) -> None:
        """``backward`` is about to be called on ``loss``, for the outermost time."""
        self.evaluates = False
        if self.memory is None:
            return
        if self.on:
            self.memory.backward(loss)
        else:
            self.memory.evaluation.backward(loss)

    def evaluation_begins(self, frame: FrameType) -> None:
        """``eval()`` was called on a module."""
        if self.memory is not None:
            self.memory.evaluation.begins(frame)
            self.evaluates = self.memory.evaluation.open

    def fetched(self, iterator: Any, frame: FrameType) -> None:
        """The loop has its next batch; ``frame`` leads to the line that asked for it."""
        if self.memory is not None:
            self.memory.fetched(iterator, frame)
        if self.time is not None:
            self.time.fetched(iterator, frame)

    def step_ended(self, record: StepRecord, frame: FrameType) -> None:
        """A step of an optimizer is over; ``frame`` leads to the line that took it."""
        # What the other one does must not look like time of the loop.
        if self.time is not None:
            self.time.step_ended(record, frame)
        if self.memory is not None:
            self.memory.step_ended(record, frame)
        if self.time is not None:
            self.time.goes_on(frame)
        if record.step >= self._rests and self._budget.resting and not self._busy():
            self.on, self.resumes = False, record.step + _ROUND - _WATCHED

    def resume(self) -> None:
        """Watch again for a while."""
        self.on, self._rests = True, int(self.resumes) + _WATCHED
        self.resumes = math.inf
        if self.time is not None:
            self.time.pauses()
        if self.memory is not None:
            self.memory.evaluation.pauses()

    def _busy(self) -> bool:
        """Whether a profile is under way."""
        memory = self.memory is not None and self.memory.busy
        return memory or (self.time is not None and self.time.busy)

    def close(self) -> None:
        """The process ends."""
        self.swallowed.close()
        if self.memory is not None:
            self.memory.close()
        if self.time is not None:
            self.time.close()
