"""Estimate how many bytes a value keeps, and whether it has an autograd graph."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from torch import Tensor

from ..source.place import kind_of

_DEPTH = 4
_ITEMS = 24
# What a tensor of any size costs besides its numbers, and one node of a graph with it.
_TENSOR = 400
_NODE = 1500


@dataclass(slots=True)
class Weight:
    """What lies in some values: bytes by kind."""

    tensors: float = 0.0
    others: float = 0.0
    graphs: int = 0
    """Tensors that hang on a graph."""
    count: int = 0
    on_device: bool = False
    seen: set[int] = field(default_factory=set[int])

    @property
    def bytes(self) -> float:
        """All of it."""
        return self.tensors + self.others

    def add(self, value: Any, depth: int = 0) -> Weight:
        """Weigh one more value."""
        if id(value) in self.seen:
            return self
        self.seen.add(id(value))
        if isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray):
            base = value.base if isinstance(value.base, np.ndarray) else value
            if id(base) == id(value) or id(base) not in self.seen:
                self.seen.add(id(base))
                self.others += base.nbytes
        elif isinstance(value, list | tuple | set | frozenset | deque | dict):
            self.others += sys.getsizeof(value)
            if depth < _DEPTH:
                self._items(value, depth)
        elif isinstance(value, str | bytes | bytearray | int | float | complex | type(None)):
            self.others += sys.getsizeof(value)
        else:
            self._object(value, depth)
        return self

    def _tensor(self, value: Tensor) -> None:
        self.count += 1
        self.tensors += _TENSOR
        if value.grad_fn is not None:
            self.graphs += 1
            self.tensors += _NODE
        self.on_device = self.on_device or value.is_cuda
        try:
            storage = value.untyped_storage()
            if storage._cdata not in self.seen:
                self.seen.add(storage._cdata)
                self.tensors += storage.nbytes()
        except (RuntimeError, NotImplementedError):  # sparse, functional and other wrappers
            self.tensors += value.numel() * value.element_size()

    def _items(self, value: Any, depth: int) -> None:
        items = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        total = len(items)
        if total <= _ITEMS:
            for item in list(items):  # one of them may be our own set
                self.add(item, depth + 1)
            return
        before = self.tensors, self.others
        for item in list(islice(items, _ITEMS)):
            self.add(item, depth + 1)
        scale = total / _ITEMS - 1
        self.tensors += scale * (self.tensors - before[0])
        self.others += scale * (self.others - before[1])

    def _object(self, value: Any, depth: int) -> None:
        try:
            self.others += sys.getsizeof(value)
        except Exception:  # an object may lie about its size
            self.others += 64
        if type(value).__module__.startswith("matplotlib."):
            with contextlib.suppress(Exception):  # no figure, or one that cannot be drawn
                width, height = value.canvas.get_width_height()
                self.others += 4 * width * height
                return
        inside = getattr(value, "__dict__", None)
        if isinstance(value, type) or depth >= _DEPTH:
            return
        if isinstance(value, BaseException):
            # Its traceback keeps the variables of all functions it came through.
            for frame, _ in traceback.walk_tb(value.__traceback__):
                if kind_of(frame.f_code.co_filename) == "user":
                    for item in list(islice(frame.f_locals.values(), _ITEMS)):
                        self.add(item, depth + 1)
        for cell in getattr(value, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # an empty one
                self.add(cell.cell_contents, depth + 1)
        if isinstance(inside, dict):
            for item in list(islice(inside.values(), _ITEMS)):
                self.add(item, depth + 1)
        for name in getattr(type(value), "__slots__", ()):
            if isinstance(name, str):
                self.add(getattr(value, name, None), depth + 1)


def oldest(value: Any) -> Any:
    """The item that came first; None where there is none, or nobody knows."""
    items = value.values() if isinstance(value, dict) else value
    return next(iter(items), None) if isinstance(value, dict | list | tuple | deque) else None


def newest(value: Any, count: int) -> list[Any]:
    """The items that came last, as far as a container tells; of a set any."""
    if isinstance(value, dict):
        return [thing for pair in islice(reversed(value.items()), count) for thing in pair]
    if isinstance(value, list | tuple | deque):
        return [value[-i] for i in range(1, min(count, len(value)) + 1)]
    if isinstance(value, set | frozenset):
        return list(islice(value, count))
    return []
