"""Looks out for what no single step shows: memory that grows, and time that goes.

Two watchers, on request, each cheap on nearly every step. What one of them notices orders an exam
(``exams/``), whose answer is an Event; detectors make findings of these.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from ..config import Settings
from .journal import Journal
from .memory_watch import MemoryWatch
from .roster import Roster
from .time_watch import TimeWatch
from .verdict import Verdict


class Lookouts:
    """Both watchers of one process; None for one that nobody asked for."""

    def __init__(self, settings: Settings, roster: Roster, journal: Journal) -> None:
        wanted = settings.lookouts
        self.memory = MemoryWatch(settings, roster, journal) if wanted.memory else None
        self.time = TimeWatch(settings, roster, journal) if wanted.time else None
        self.on = wanted.memory or wanted.time

    def backward(self, loss: object) -> None:
        """``backward`` is about to be called on ``loss``, for the outermost time."""
        if self.memory is not None:
            self.memory.backward(loss)
        if self.time is not None:
            self.time.backward(loss)

    def fetched(self, iterator: Any, frame: FrameType) -> None:
        """The loop has its next batch; ``frame`` leads to the line that asked for it."""
        if self.memory is not None:
            self.memory.fetched(iterator, frame)
        if self.time is not None:
            self.time.fetched(iterator, frame)

    def step_ended(self, verdict: Verdict, frame: FrameType) -> None:
        """A step of an optimizer is over; ``frame`` leads to the line that took it."""
        # What the other one does must not look like time of the loop.
        if self.time is not None:
            self.time.step_ended(verdict, frame)
        if self.memory is not None:
            self.memory.step_ended(verdict, frame)
        if self.time is not None:
            self.time.goes_on(frame)

    def close(self) -> None:
        """The process ends."""
        if self.memory is not None:
            self.memory.close()
        if self.time is not None:
            self.time.close()
