"""Cycles through a graph that nothing frees: no name leads there, and no collector sees them.

``backward(create_graph=True)``: the gradient of a leaf then has a graph, the graph leads to the
leaf, and the leaf holds its gradient. Only nodes that stay alive show it. Parameters are freed by
``zero_grad``; other leaves are not.

``ctx.out = out`` in a ``torch.autograd.Function``: the output holds its node, and the node holds
its output. ``ctx.save_for_backward`` knows about that.
"""

from __future__ import annotations

import inspect
import re
import weakref
from collections import deque
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch

from ..source.place import frames_from, kind_of, place_told
from .graph_markers import Sentinel, leave

# Nodes of one graph that are looked after: which of them are kept depends on what was computed.
_NODES = 24
_KEY = "holdfast.cycle"
# Nodes of one loss among which functions of the user are looked for.
_MOST = 2000
# Graphs that are looked after at the same time, and steps that they must have outlived to be a
# measurement; the next one is due when they are twice as old.
_GRAPHS = 3
_STEPS = 8


class Cycles:
    """The graphs that were differentiated and kept."""

    def __init__(self) -> None:
        self.wanted = 0
        """Steps for which graphs have been kept, where the next loss may show by what."""
        self._alive: deque[weakref.ref[Sentinel]] = deque(maxlen=8 * _NODES)
        self._place = ("", 0)
        self._due = _STEPS

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
        for node in _nodes(loss, _NODES):
            self._alive.append(leave(node, _KEY, step))

    def kept(self, step: int) -> dict[str, Any] | None:
        """How many graphs of steps long ago are still there; None before that is worth a word."""
        steps = {found.step for s in self._alive if (found := s()) is not None}
        age = step - min(steps, default=step)
        if age < self._due or not self._place[1]:
            return None
        self._due = 2 * age
        old = [s for s in steps if s <= step - _STEPS]
        facts = {"path": "the .grad of a leaf", "name": "grad", "how": "cycle", "seen": "trace"}
        return facts | {"age": age, "steps": age, "graphs": len(old)} | place_told(*self._place)


def holds_its_output(loss: Any, age: int) -> dict[str, Any] | None:
    """The facts, where a function of the user keeps its output on its ``ctx``.

    Args:
        loss: a loss whose graph has it, if any has.
        age: steps for which graphs have been kept.
    """
    for node in _nodes(loss, _MOST):
        function = getattr(node, "_forward_cls", None)
        for name, value in vars(node).items() if function is not None else ():
            held = value if isinstance(value, list | tuple) else [value]
            if any(isinstance(t, torch.Tensor) and t.grad_fn is node for t in held):  # pyright: ignore[reportUnknownVariableType]
                facts = {"path": f"ctx.{name}", "name": name, "how": "ctx", "seen": "trace"}
                return facts | {"age": age, "steps": age, "graphs": 1} | _where_kept(function, name)
    return None


def _where_kept(function: Any, name: str) -> dict[str, Any]:
    methods = (getattr(function, "forward", None), getattr(function, "setup_context", None))
    for method in filter(None, methods):
        try:
            lines, first = inspect.getsourcelines(method)
        except (OSError, TypeError):
            continue
        for number, line in enumerate(lines, first):
            if re.search(rf"\.{name}\b[^=]*=(?!=)", line):
                return place_told(inspect.getfile(method), number)
    return {}


def _nodes(loss: Any, most: int) -> Iterator[Any]:
    """Nodes of a graph, those near the loss first."""
    queue, seen = deque([getattr(loss, "grad_fn", None)]), set[Any]()
    while queue and len(seen) < most:
        node = queue.popleft()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            queue.extend(below for below, _ in node.next_functions)
