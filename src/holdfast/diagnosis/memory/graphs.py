"""How far back an autograd graph reaches, and whether it is kept alive.

Nodes carry numbers that rise with time, so that a node with a number below the one noted at the
end of a step was made in that step or before. Smallest numbers first, a bounded number of nodes.
"""

from __future__ import annotations

import heapq
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch

# A parameter's own node is outside of time.
_LEAF = 1 << 62
_NODES = 600
# Where old nodes were met among these, so many more are followed: a recurrent layer makes hundreds
# in each step (235 for a GRU over 16 tokens), and 600 of them reach back four steps only.
_FAR = 20_000
# One backward pass in so many leaves a marker; not a number that loops like to count by: what is
# kept on every tenth step must be met.
_EVERY = 7
_MARKERS = 64

now = torch.autograd._get_sequence_nr
"""The number that the next node of this thread will have."""


class Reach(NamedTuple):
    """What was met on the way down."""

    oldest: int
    entries: list[int]
    """Numbers of old nodes that a new one leads to directly."""
    old: list[int]
    """Numbers of the old nodes that were met."""
    whole: bool
    """Whether all nodes were met, and not only as many as are followed."""


def number_of(node: Any) -> int:
    """The number of a node; very large for leaves."""
    try:
        return int(node._sequence_nr())
    except (AttributeError, TypeError):
        return _LEAF


def newest(value: Any) -> Any:
    """The graph of a tensor, or of what came last into a container; None without one."""
    for _ in range(3):
        if isinstance(value, torch.Tensor):
            return value.grad_fn
        if isinstance(value, Mapping):
            value = list(cast("Mapping[Any, Any]", value).values())
        if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
            break
        value = cast("Sequence[Any]", value)[-1]
    return None


def reach(
    node: Any, before: int, *, far: bool = False, young: dict[Any, int] | None = None
) -> Reach:
    """Walk from a node; what is numbered below ``before`` is old.

    Args:
        node: where to begin; what a tensor's ``grad_fn`` is.
        before: the first number that is not old.
        far: whether to go on once something old was met.
        young: nodes with nothing old below, as walks from other tensors of the same graph have
            found; they are not walked again, and this one adds to them.
    """
    oldest, entries, old, count = _LEAF, list[int](), list[int](), -1
    most, seen = _FAR if far else _NODES, dict[Any, int](young or {})
    for count, (number, below) in enumerate(_oldest_first(node, most, seen)):
        oldest = min(oldest, number)
        if count >= _NODES and oldest >= before:
            break
        if number >= before:
            entries += [lower for lower in below if lower < before]
        else:
            old.append(number)
    whole = count + 1 < most
    if young is not None and oldest >= before and count + 1 < _NODES:
        young |= seen
    return Reach(oldest, entries, old, whole)


def touches(node: Any, low: int, high: int) -> bool:
    """Whether a graph has a node numbered from ``low`` up to, not including, ``high``."""
    return any(low <= number < high for number, _ in _oldest_first(node, 4 * _NODES, {}))


def _oldest_first(node: Any, most: int, seen: dict[Any, int]) -> Iterator[tuple[int, list[int]]]:
    """Numbers of the nodes below a node, of those that are known the oldest one first.

    With each come those of the nodes that it leads to. What was ``seen`` is skipped, and what is
    met is added to it. Asking a node takes longer than all else here: each is asked once.
    """
    queue = list[tuple[int, int, Any]]()
    if node is not None and node not in seen:
        seen[node] = number_of(node)
        queue.append((seen[node], 0, node))
    for _ in range(most):
        if not queue:
            return
        number, _, at = heapq.heappop(queue)
        below = list[int]()
        for lower, _ in at.next_functions:
            if lower is None:
                continue
            known = seen.get(lower)
            if known is None:
                known = seen[lower] = number_of(lower)
                if known < _LEAF:
                    heapq.heappush(queue, (known, len(seen), lower))
            below.append(known)
        yield number, below


class _Marker:
    """Lives as long as the node it was left on."""

    __slots__ = ("__weakref__", "step")

    def __init__(self, step: int) -> None:
        self.step = step


class Markers:
    """Small objects left in graphs: those that are still alive show that their graphs are.

    A node carries a dictionary for whoever wants to note something on it. What is put there dies
    with the node.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._alive: deque[weakref.ref[_Marker]] = deque(maxlen=_MARKERS)

    def backward(self, loss: Any, step: int) -> None:
        """``backward`` is called on ``loss``: now and then its graph is marked at both ends."""
        self._calls += 1
        if self._calls % _EVERY or not isinstance(loss, torch.Tensor) or loss.grad_fn is None:
            return
        for node in (loss.grad_fn, _bottom(loss.grad_fn)):
            marker = _Marker(step)
            cast("Any", node).metadata["holdfast"] = marker
            self._alive.append(weakref.ref(marker))

    def oldest(self) -> int | None:
        """The first step a graph of which is still alive; None when there is none."""
        while self._alive and self._alive[0]() is None:
            self._alive.popleft()
        marker = self._alive[0]() if self._alive else None
        return None if marker is None else marker.step


def _bottom(node: Any, nodes: int = 40) -> Any:
    """A node far down, towards the input: what keeps anything above it alive keeps this one."""
    for _ in range(nodes):
        below = [b for b, _ in node.next_functions if b is not None and number_of(b) < _LEAF]
        if not below:
            break
        node = below[0]
    return node
