"""Batches cut into pieces along their samples."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, cast

from torch import Tensor

from .transfer import changed, count, is_leaf, tensors


def cut(batch: Any, pieces: int) -> list[Any]:
    """The batch in so many pieces of about the same size; fewer where it has fewer samples.

    Every tensor whose first dimension is the samples is cut, and every list of a text or an
    object for each sample; the rest goes into each piece as it is. Tensors share the memory of
    the batch. What cannot be cut is one piece.

    >>> import torch
    >>> for piece in cut({"x": torch.arange(5), "names": list("abcde"), "scale": 2.0}, 2):
    ...     print(piece)
    {'x': tensor([0, 1]), 'names': ['a', 'b'], 'scale': 2.0}
    {'x': tensor([2, 3, 4]), 'names': ['c', 'd', 'e'], 'scale': 2.0}
    """
    samples = count(batch)
    pieces = min(pieces, samples)
    if pieces < 2:
        return [batch]

    bounds = [samples * number // pieces for number in range(pieces + 1)]
    try:
        return [_piece(batch, samples, begin, end) for begin, end in pairwise(bounds)]
    except _Whole:
        return [batch]


class _Whole(Exception):
    """A batch that cannot be cut."""


def _piece(batch: Any, samples: int, begin: int, end: int) -> Any:
    def leaf(value: Any) -> bool:
        moves_itself = is_leaf(value) and not isinstance(value, Mapping)
        return moves_itself or _names(value, samples)

    def part(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[begin:end] if value.ndim and len(value) == samples else value
        if isinstance(value, list):
            return cast("list[Any]", value)[begin:end]
        raise _Whole  # a packed sequence, a graph: nobody else knows which of its tensors to cut

    return changed(batch, part, leaf)


def _names(value: Any, samples: int) -> bool:
    """Whether it is a list of something about each sample."""
    if not isinstance(value, list) or len(cast("list[Any]", value)) != samples:
        return False
    numbers = any(isinstance(one, int | float | None) for one in cast("list[Any]", value))
    return not numbers and not any(True for _ in tensors(value))
