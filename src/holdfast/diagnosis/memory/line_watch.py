"""Find the line that makes values grow, by tracing a few steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import FrameType
from typing import Any

import numpy as np
from torch import Tensor

from ..watchpoint import Change, Watchpoint
from .holders import CACHED, Held

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
        self._watch = Watchpoint([_Changed(held) for group in groups for held in group])
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


class _Changed:
    """A probe of a watchpoint: the length of a container, or which tensor a name stands for."""

    def __init__(self, held: Held) -> None:
        self._held, self._value = held, held.value
        code = held.owner.f_code if held.how == "local" else None
        self._shared = code is not None and held.key in (*code.co_cellvars, *code.co_freevars)

    def token(self, frame: FrameType) -> Any:
        """What differs between the value and its former self."""
        value = self._value = self._now(frame)
        if isinstance(value, Tensor):
            return id(value), value._version, value.numel()
        if isinstance(value, np.ndarray):
            return id(value), value.size
        if type(value) is CACHED:
            return value.cache_info().currsize
        if isinstance(value, list | dict | deque | set | tuple | str | bytes | bytearray):
            return id(value), len(value)
        return id(value)

    def _now(self, frame: FrameType) -> Any:
        owner, key = self._held.owner, self._held.key
        if self._held.how == "local":
            mine = self._shared or frame is owner
            return owner.f_locals.get(key) if mine else self._value
        if self._held.how == "closure":
            return owner.cell_contents
        if owner is None:
            return self._value
        if isinstance(owner, dict):
            return owner.get(key)
        if self._held.how == "item":
            try:
                return owner[key]
            except (LookupError, TypeError):
                return self._value
        return vars(owner).get(key)
