"""Small objects left in autograd graphs, to see whether the graphs die.

A node carries a dictionary for whoever wants to note something on it. What is put there dies with
the node, so that a weak reference to it tells when a graph is kept alive, at no cost.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import torch

from . import graphs as graphs

# Not a number that loops like to count by: what is kept on every tenth step must be met.
_EVERY = 7
_KEY = "holdfast"
_KEPT = 64


class Sentinel:
    """Lives as long as the node it was left on."""

    __slots__ = ("__weakref__", "step")

    def __init__(self, step: int) -> None:
        self.step = step


def leave(node: Any, key: str, step: int) -> weakref.ref[Sentinel]:
    """Leave one on a node of a step."""
    sentinel = Sentinel(step)
    node.metadata[key] = sentinel
    return weakref.ref(sentinel)


class Sentinels:
    """Those that may still be alive."""

    def __init__(self) -> None:
        self._calls = 0
        self._alive: deque[weakref.ref[Sentinel]] = deque(maxlen=_KEPT)

    def backward(self, loss: Any, step: int) -> None:
        """``backward`` is called on ``loss``: now and then one is left far down its graph."""
        self._calls += 1
        if self._calls % _EVERY or not isinstance(loss, torch.Tensor) or loss.grad_fn is None:
            return
        for node in (loss.grad_fn, graphs.bottom(loss.grad_fn)):
            self._alive.append(leave(node, _KEY, step))

    def oldest(self) -> int | None:
        """The first step a graph of which is still alive; None when there is none."""
        while self._alive and self._alive[0]() is None:
            self._alive.popleft()
        sentinel = self._alive[0]() if self._alive else None
        return None if sentinel is None else sentinel.step
