"""What graphs of past steps hold when memory runs out, and the variable that keeps them.

Growth needs several steps to be seen; a run that dies on its second batch has none. Here the
question is asked once, of everything in reach of the line that failed: which variable leads to
nodes of earlier steps, and how large are the tensors that those nodes still keep.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from time import thread_time
from types import TracebackType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...records.memory import GraphChain
from ...source.ownership import kind_of
from . import growth_facts
from .graphs import number_of
from .references import Held, walk
from .value_sizes import Timeline

# Nodes of one holder, and seconds for all of them: the script has already failed.
_NODES = 20_000
_SECONDS = 3.0
# Items of a container that are followed.
_ITEMS = 4096
# Whose items can be read without running the user's code.
_PLAIN = ("builtins", "collections")


class _NoOperation(TorchDispatchMode):
    """Keeps what unpacks a saved tensor from computing it again, as checkpointing would."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:  # how an output of a node comes back
            return func(*args, **(kwargs or {}))
        raise RuntimeError("nothing is computed after the end")


class PastGraphs(NamedTuple):
    """A variable, and what the nodes of past steps below it keep."""

    held: Held
    bytes: int
    age: int
    """Steps since the oldest of them was made."""

    def record(self, in_use: int) -> GraphChain:
        """What is recorded of it, with the bytes that all tensors or the process took."""
        line = growth_facts.of_line(self.held, [])
        chain = growth_facts.of_chain(self.held, self.age, fed=False, line=line)
        return chain.replace(killed=True, held=self.bytes, in_use=in_use)


def largest(died: BaseException, timeline: Timeline) -> PastGraphs | None:
    """The variable that keeps most of past steps; None where none keeps any."""
    before = timeline.before(1)
    frame = _innermost(died.__traceback__)
    if frame is None or before < 0:
        return None
    best: PastGraphs | None = None
    with _NoOperation():
        until = thread_time() + _SECONDS
        for held in walk(frame):
            if held.how == "item" or thread_time() > until:
                continue  # the container itself comes, too
            size, oldest = _kept(_tensors(held.value), before, until)
            if size and (best is None or size > best.bytes):
                best = PastGraphs(held, size, max(1, timeline.age_of(oldest) + 1))
    return best


def _innermost(traceback: TracebackType | None) -> Any:
    found = None
    while traceback is not None:
        if kind_of(traceback.tb_frame.f_code.co_filename) == "user":
            found = traceback.tb_frame
        traceback = traceback.tb_next
    return found


def _tensors(value: Any) -> Iterator[Tensor]:
    """A tensor with a graph, or those in a container."""
    if isinstance(value, Tensor):
        yield from [value] if value.grad_fn is not None else []
        return
    if type(value).__module__ not in _PLAIN or not isinstance(value, Collection):
        return
    inside = cast("Collection[Any]", value)
    items = inside.values() if isinstance(inside, Mapping) else inside
    for item in islice(items, _ITEMS):
        if isinstance(item, Tensor) and item.grad_fn is not None:
            yield item


def _kept(tensors: Iterable[Tensor], before: int, until: float) -> tuple[int, int]:
    """Bytes that nodes numbered below ``before`` keep, and the smallest number among them."""
    queue = [tensor.grad_fn for tensor in tensors]
    seen: set[Any] = set(queue)
    storages: dict[int, int] = {}
    oldest = before
    while queue and len(seen) < _NODES and thread_time() < until:
        node: Any = queue.pop()
        number = number_of(node)
        if number < before:
            sizes = _saved(node)
            storages |= sizes
            oldest = min(oldest, number) if sizes else oldest
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                queue.append(below)
    return sum(storages.values()), oldest


def _saved(node: Any) -> dict[int, int]:
    """Storages that a node keeps, with their sizes; none where it was freed, or asks for work."""
    found: dict[int, int] = {}
    names = [name for name in dir(node) if name.startswith("_saved_")]
    for name in [*names, *(["saved_tensors"] if hasattr(node, "saved_tensors") else [])]:
        try:
            value = getattr(node, name)
            for tensor in value if isinstance(value, tuple | list) else (value,):
                # A leaf is a parameter or a batch: neither is there because of the graph.
                if isinstance(tensor, Tensor) and not (tensor.is_leaf and tensor.requires_grad):
                    storage = tensor.untyped_storage()
                    found[storage._cdata] = storage.nbytes()
        except Exception:
            continue
    return found
