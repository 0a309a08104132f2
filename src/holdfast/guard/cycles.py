"""``backward(create_graph=True)`` may leave a cycle that nothing frees.

The gradient of a leaf then has a graph, the graph leads to the leaf, and the leaf holds its
gradient. Python's collector does not see it, and no name leads there: only nodes that stay alive
do. Parameters are freed by ``zero_grad``; other leaves are not.
"""

from __future__ import annotations

import weakref
from collections import deque
from types import FrameType
from typing import Any

import torch

from ..exams._place import frames_from, kind_of, place_told

# Nodes of one graph that are looked after: which of them are kept depends on what was computed.
_NODES = 24
_KEY = "holdfast.cycle"
# Graphs that must have outlived so many steps.
_GRAPHS = 3
_STEPS = 20


class _Sentinel:
    __slots__ = ("__weakref__", "step")

    def __init__(self, step: int) -> None:
        self.step = step


class Cycles:
    """The graphs that were differentiated and kept."""

    def __init__(self) -> None:
        self._alive: deque[weakref.ref[_Sentinel]] = deque(maxlen=8 * _NODES)
        self._place = ("", 0)

    def backward(self, loss: Any, step: int, frame: FrameType) -> None:
        """``backward`` is called with ``create_graph``."""
        # The first ones are enough: what is freed makes room for later ones.
        self._alive = deque((s for s in self._alive if s() is not None), self._alive.maxlen)
        if len(self._alive) > _GRAPHS * _NODES or not isinstance(loss, torch.Tensor):
            return
        for at in frames_from(frame):
            if kind_of(at.f_code.co_filename) == "user":
                self._place = at.f_code.co_filename, at.f_lineno
                break
        queue, seen = deque([loss.grad_fn]), set[Any]()
        while queue and len(seen) < _NODES:
            node = queue.popleft()
            if node is None or node in seen:
                continue
            seen.add(node)
            sentinel = _Sentinel(step)
            notes: Any = node.metadata
            notes[_KEY] = sentinel
            self._alive.append(weakref.ref(sentinel))
            queue.extend(below for below, _ in node.next_functions)

    def kept(self, step: int) -> dict[str, Any] | None:
        """The facts, where graphs of several steps long ago are still there."""
        steps = {found.step for s in self._alive if (found := s()) is not None}
        old = sorted(s for s in steps if s <= step - _STEPS)
        if len(old) < _GRAPHS or not self._place[1]:
            return None
        self._alive.clear()
        facts = {"path": "the .grad of a leaf", "name": "grad", "how": "cycle", "seen": "trace"}
        return facts | {"age": step - old[0], "steps": step - old[0]} | place_told(*self._place)
