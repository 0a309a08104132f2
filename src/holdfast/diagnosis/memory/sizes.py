"""Estimate how many bytes a value keeps, and whether it has an autograd graph."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from torch import Tensor

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
            if isinstance(value.base, np.ndarray):  # a view keeps the whole
                self.add(value.base, depth)
            else:
                self.others += value.nbytes
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
        before = self.tensors, self.others
        for item in list(islice(items, _ITEMS)):  # one of them may be our own set
            self.add(item, depth + 1)
        # The rest is taken to be like them.
        scale = max(0.0, len(items) / _ITEMS - 1)
        self.tensors += scale * (self.tensors - before[0])
        self.others += scale * (self.others - before[1])

    def _object(self, value: Any, depth: int) -> None:
        try:
            self.others += sys.getsizeof(value)
        except Exception:  # an object may lie about its size
            self.others += 64
        if isinstance(value, type) or depth >= _DEPTH:
            return
        inside = getattr(value, "__dict__", None)
        if isinstance(inside, dict):
            for item in list(islice(inside.values(), _ITEMS)):
                self.add(item, depth + 1)


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
