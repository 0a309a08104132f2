"""Watches the time of a run; to be written."""

from __future__ import annotations

from types import FrameType
from typing import Any

from ..config import Settings
from .journal import Journal
from .roster import Roster
from .verdict import Verdict


class TimeWatch:
    """Notices, orders exams and writes down what they found."""

    def __init__(self, settings: Settings, roster: Roster, journal: Journal) -> None:
        self._settings, self._roster, self._journal = settings, roster, journal

    def backward(self, loss: object) -> None:
        """``backward`` is about to be called on ``loss``."""

    def fetched(self, iterator: Any, frame: FrameType) -> None:
        """The loop has its next batch."""

    def step_ended(self, verdict: Verdict, frame: FrameType) -> None:
        """A step is over."""

    def close(self) -> None:
        """The process ends."""
