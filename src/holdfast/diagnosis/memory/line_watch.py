"""Find the line that makes values grow, by tracing a few steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import FrameType
from typing import Any

import numpy as np
from torch import Tensor

from ..watchpoint import ValueChange, Watchpoint
from .references import CACHED, Held

# Steps that lines are followed, and steps that somebody else who follows the lines is waited for.
_STEPS = 3
_PATIENCE = 12
_SIZED = (list, dict, deque, set, tuple, str, bytes, bytearray)


class LineWatch:
    """One watchpoint on several values."""

    def __init__(self) -> None:
        self._watch: Watchpoint | None = None
        self._count = 0
        self.steps = 0
        """How many have been followed to their end."""

    @property
    def active(self) -> bool:
        """Whether lines are being followed."""
        return self._watch is not None

    def start(self, values: Sequence[Held], frame: FrameType) -> None:
        """Begin to follow the lines that change some values."""
        self._count, self.steps = len(values), 0
        self._watch = Watchpoint([_Changed(held) for held in values])
        self._watch.start(frame)

    def step_ended(self, frame: FrameType) -> bool:
        """A step is over; whether enough has been seen."""
        watch = self._watch
        if watch is None:
            return False
        self.steps += 1
        if not watch.began:
            # Somebody else follows the lines just now; that may be over soon.
            if watch.start(frame):
                self.steps = 0
            return self.steps >= _PATIENCE
        return len(watch.changes) == self._count or self.steps >= _STEPS or not watch.active

    def stop(self) -> list[list[ValueChange]]:
        """End; the changes of each value, in the order they were first seen."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()
        return [watch.changes.get(i, []) if watch is not None else [] for i in range(self._count)]


class _Changed:
    """A probe of a watchpoint: the length of a container, or which tensor a name stands for."""

    def __init__(self, held: Held) -> None:
        self._held, self._value = held, held.value
        code = held.owner.f_code if held.how == "local" else None
        self._shared = code is not None and held.key in (*code.co_cellvars, *code.co_freevars)

    def token(self, frame: FrameType) -> Any:
        """What differs between the value and its former self."""
        value = self._value = self._now(frame)
        if isinstance(value, _SIZED):
            return id(value), len(value)
        if isinstance(value, Tensor):
            return id(value), value._version, value.numel()
        if isinstance(value, np.ndarray):
            return id(value), value.size
        if type(value) is CACHED:
            return value.cache_info().currsize
        return id(value)

    def _now(self, frame: FrameType) -> Any:
        owner, key = self._held.owner, self._held.key
        if self._held.how == "local":
            own = self._shared or frame is owner
            return owner.f_locals.get(key) if own else self._value
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
