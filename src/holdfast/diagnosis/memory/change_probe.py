"""A probe for watchpoints: whether what hangs at a place has become longer, or another one."""

from __future__ import annotations

from collections import deque
from types import FrameType
from typing import Any

import numpy as np
from torch import Tensor

from .holders import CACHED, Held


class Changed:
    """A probe of a watchpoint: the length of a container, or which tensor a name stands for."""

    def __init__(self, held: Held) -> None:
        self._how, self._owner, self._key, self._value = held.how, held.owner, held.key, held.value
        code = self._owner.f_code if held.how == "local" else None
        self._shared = code is not None and held.key in (*code.co_cellvars, *code.co_freevars)

    def token(self, frame: FrameType) -> Any:
        """What tells the value from its former self."""
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
        if self._how == "local":
            mine = self._shared or frame is self._owner
            return self._owner.f_locals.get(self._key) if mine else self._value
        if self._how == "closure":
            return self._owner.cell_contents
        if self._owner is None:
            return self._value
        if isinstance(self._owner, dict):
            return self._owner.get(self._key)
        if isinstance(self._owner, type):
            return vars(self._owner).get(self._key)
        if self._how == "item":
            try:
                return self._owner[self._key]
            except (LookupError, TypeError):
                return self._value
        return getattr(self._owner, self._key, None)
