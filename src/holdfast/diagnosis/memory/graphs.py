"""How far back an autograd graph reaches.

Nodes carry numbers that rise with time, so that a node with a number below the one noted at the
end of a step was made in that step or before. Smallest numbers first, a bounded number of nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

# A parameter's own node is outside of time.
_LEAF = 1 << 62
NODES = 600

now = torch.autograd._get_sequence_nr
"""The number that the next node of this thread will have."""


@dataclass(slots=True)
class Reach:
    """What was met on the way down."""

    oldest: int = _LEAF
    entries: list[int] = field(default_factory=list[int])
    """Numbers of old nodes that a new one leads to directly."""
    whole: bool = True
    """The graph was walked to its end."""


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


def reach(node: Any, before: int, nodes: int = NODES) -> Reach:
    """Walk from a node; what is numbered below ``before`` is old.

    Args:
        node: where to begin; what a tensor's ``grad_fn`` is.
        before: the first number that is not old.
        nodes: look at this many at most.
    """
    found = Reach()
    if node is None:
        return found
    first = number_of(node)
    queue: list[tuple[int, int, Any]] = [(first, 0, node)]
    seen: dict[Any, None] = {node: None}
    count = 0
    while queue:
        number, _, at = heapq.heappop(queue)
        count += 1
        if count > nodes:
            found.whole = False
            break
        found.oldest = min(found.oldest, number)
        for below, _ in at.next_functions:
            if below is None or below in seen:
                continue
            seen[below] = None
            next_number = number_of(below)
            if next_number >= _LEAF:
                continue
            if next_number < before <= number:
                found.entries.append(next_number)
            heapq.heappush(queue, (next_number, len(seen), below))
    return found


def touches(node: Any, low: int, high: int, nodes: int = 4 * NODES) -> bool:
    """Whether a graph has a node numbered from ``low`` up to, not including, ``high``."""
    if node is None:
        return False
    queue = [(number_of(node), 0, node)]
    seen: dict[Any, None] = {node: None}
    for _ in range(nodes):
        if not queue:
            return False
        number, _, at = heapq.heappop(queue)
        if low <= number < high:
            return True
        for below, _ in at.next_functions:
            if below is not None and below not in seen:
                seen[below] = None
                number = number_of(below)
                if number < _LEAF:
                    heapq.heappush(queue, (number, len(seen), below))
    return False


def bottom(node: Any, nodes: int = 40) -> Any:
    """A node far down, towards the input: what keeps anything above it alive keeps this one."""
    for _ in range(nodes):
        lower = None
        for below, _ in node.next_functions:
            if below is not None and number_of(below) < _LEAF:
                lower = below
                break
        if lower is None:
            break
        node = lower
    return node
