"""Chunks of shards: ranges that are read at once, two of them mixed, and batches out of these."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from .gathered import Gathered, Part, joined, row
from .sampling import CHUNKS

Piece = tuple[int, int, int]
"""A shard, and the first and the last but one of its samples."""

Window = tuple[list[Sequence[Any]], Tensor]
"""Blocks that are in memory together, and the order of their samples as if put end to end."""


def cut(size: int, chunk: int, boundaries: Iterable[int] = ()) -> Iterator[tuple[int, int]]:
    """The ranges of a shard of ``size`` samples, none longer than ``chunk``.

    A range ends where a compressed block of the file ends, where there is such a place within its
    last samples: a block that two ranges share has to be decompressed twice.

    >>> list(cut(10, 4)), list(cut(10, 4, [0, 3, 6, 9]))
    ([(0, 4), (4, 8), (8, 10)], [(0, 3), (3, 6), (6, 10)])
    """
    edges = [int(edge) for edge in boundaries]
    first = 0
    while first < size:
        last = min(first + chunk, size)
        at = bisect_right(edges, last) - 1
        if last < size and at >= 0 and edges[at] > first:
            last = edges[at]
        yield first, last
        first = last


def windows(
    shards: Sequence[Any], pieces: Iterator[Piece], drawn: torch.Generator | None
) -> Iterator[Window]:
    """The pieces in memory, two at a time; one at a time and in order without a generator.

    Whoever goes through them lets go of the blocks before asking for the next.
    """
    while window := list(islice(pieces, CHUNKS if drawn is not None else 1)):
        blocks = [_read(shards[shard], first, last) for shard, first, last in window]
        count = sum(map(len, blocks))
        if drawn is None:
            order = torch.arange(count, device="cpu")
        else:
            order = torch.randperm(count, generator=drawn, device="cpu")
        yield blocks, order
        del blocks


def samples(found: Iterator[Window]) -> Iterator[Any]:
    """The samples of windows, one by one."""
    for blocks, order in found:
        places = [(block, index) for block in blocks for index in range(len(block))]
        for number in order.tolist():
            yield row(*places[number])
        del blocks, places


def batches(
    found: Iterator[Window], size: int, *, drop_last: bool
) -> Iterator[Gathered | list[Any]]:
    """The samples of windows in batches; in each, those of one block come before the other's.

    A batch that a window does not fill is filled by the next.
    """
    parts: list[Part] = []
    missing = size
    for blocks, order in found:
        while len(order):
            taken, order = order[:missing], order[missing:]
            parts += _by_block(blocks, taken)
            missing -= len(taken)
            if not missing:
                yield joined(parts)
                parts, missing = [], size
        if parts:
            # A copy of the few that wait for the next window, so that this one can go.
            rest = joined(parts)
            parts = [(rest, torch.arange(len(rest), device="cpu"))]
        del blocks
    if parts and not drop_last:
        yield joined(parts)


def _by_block(blocks: Sequence[Sequence[Any]], taken: Tensor) -> list[Part]:
    parts: list[Part] = []
    for block in blocks:
        inside = (taken >= 0) & (taken < len(block))
        which = taken[inside]
        if len(which):
            parts.append((block, which))
        taken = taken - len(block)
    return parts


def _read(shard: Any, first: int, last: int) -> Sequence[Any]:
    """The samples of a range, at once where the shard can."""
    if hasattr(shard, "__getitems__"):
        return shard.__getitems__(range(first, last))
    return [shard[index] for index in range(first, last)]
