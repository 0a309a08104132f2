"""Looks out for what no single step shows: memory that grows, and time that goes.

Two watchers, each cheap on nearly every step. What one of them notices orders an exam (``exams/``),
whose answer is an Event; detectors make findings of these.
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
    """Both watchers of one process."""

    def __init__(self, settings: Settings, roster: Roster, journal: Journal) -> None:
        self.memory = MemoryWatch(settings, roster, journal)
        self.time = TimeWatch(settings, roster, journal)

    def backward(self, loss: object) -> None:
        """``backward`` is about to be called on ``loss``, for the outermost time."""
        self.memory.backward(loss)

    def fetched(self, iterator: Any, frame: FrameType) -> None:
        """The loop has its next batch; ``frame`` leads to the line that asked for it."""
        self.memory.fetched(iterator, frame)
        self.time.fetched(iterator, frame)

    def step_ended(self, verdict: Verdict, frame: FrameType) -> None:
        """A step of an optimizer is over; ``frame`` leads to the line that took it."""
        self.memory.step_ended(verdict, frame)
        self.time.step_ended(verdict, frame)

    def close(self) -> None:
        """The process ends."""
        self.memory.close()
        self.time.close()
