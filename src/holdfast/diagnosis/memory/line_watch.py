"""Find the line that makes values grow, by tracing a few steps."""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType

from ..watchpoint import Change, Watchpoint
from .change_probe import Changed
from .holders import Held

# Steps that lines are followed where growth is seen on every step, and at most: values that grow
# in turn need more, and so does waiting for somebody else who follows the lines.
_STEPS = 3
_MOST = 12


class LineWatch:
    """One watchpoint on several values; each may be a group that grows in turn."""

    def __init__(self) -> None:
        self._watch: Watchpoint | None = None
        self._groups: list[int] = []
        self._count = 0
        self._steps = 0
        self._span = _STEPS

    @property
    def active(self) -> bool:
        """Whether lines are being followed."""
        return self._watch is not None

    def start(self, groups: Sequence[Sequence[Held]], frame: FrameType) -> None:
        """Begin; a change of one value of a group is a change of the group."""
        self._groups = [i for i, group in enumerate(groups) for _ in group]
        self._count, self._steps = len(groups), 0
        self._span = _MOST if any(len(group) > 1 for group in groups) else _STEPS
        self._watch = Watchpoint([Changed(held) for group in groups for held in group])
        self._watch.start(frame)

    def step_ended(self, frame: FrameType) -> bool:
        """A step is over; whether enough has been seen."""
        watch = self._watch
        if watch is None:
            return False
        self._steps += 1
        if not watch.began:
            # Somebody else follows the lines just now; that may be over soon.
            if self._steps < _MOST and not watch.start(frame):
                return False
            self._steps = 0 if watch.began else self._span
        seen = {self._groups[i] for i in watch.changes}
        return len(seen) == self._count or self._steps >= self._span or not watch.active

    def stop(self) -> list[list[Change]]:
        """End; the changes of each group, in the order they were first seen."""
        watch, self._watch = self._watch, None
        found: list[list[Change]] = [[] for _ in range(self._count)]
        if watch is not None:
            watch.stop()
            for i, changes in watch.changes.items():
                found[self._groups[i]] += changes
        return found
