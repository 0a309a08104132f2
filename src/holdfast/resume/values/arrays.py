"""Arrays that lie in the memory of another array or of a tensor: where, and put there again.

What a script writes to one of them it writes to all of them. So such an array is saved as its place
in the memory, and the memory once.
"""

from __future__ import annotations

import bisect
import mmap
from typing import Any

import numpy as np
from torch import Tensor

Array = np.ndarray[Any, Any]
_NUMBERS = "biufc"
_ROW = 20
"""Starts are kept in rows of 2**20 bytes: a buffer of experience is thousands of small arrays."""


class Spans:
    """Pieces of memory, none in another one, and what is in them."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[int, Any]] = {}
        self._rows: dict[int, list[int]] = {}

    def add(self, start: int, size: int, thing: Any) -> None:
        """Something is in this memory; what was told of the same start first counts."""
        if start not in self._held:
            self._held[start] = size, thing
            row = -1 if size >> _ROW else start >> _ROW
            bisect.insort(self._rows.setdefault(row, []), start)

    def at(self, start: int, size: int) -> Any:
        """Something that is in a part of this memory; None where nothing is."""
        near = range((start >> _ROW) - 1, ((start + size - 1) >> _ROW) + 1)
        for row in (-1, *(near if len(near) < len(self._rows) else self._rows)):
            starts = self._rows.get(row, ())
            number = bisect.bisect_right(starts, start + size - 1)
            if number:
                length, thing = self._held[starts[number - 1]]
                if starts[number - 1] + length > start:
                    return thing
        return None


def root_of(value: Array) -> Array | None:
    """The array in whose memory this one lies; None where it lies in its own, or that is a file."""
    found, base = value, value.base
    while isinstance(base, np.ndarray):
        found, base = base, base.base
    if found is value or not value.size or is_mapped(found):
        return None
    return found if _row(found) is not None else None


def start_of(value: Array) -> int:
    """The address of its first item."""
    return int(value.__array_interface__["data"][0])


def layout(value: Array, start: int) -> list[Any]:
    """Type, shape, steps and first byte of an array in some memory."""
    first = start_of(value) - start
    return [value.dtype.str, list(value.shape), list(value.strides), first]


def placed(live: Any, memory: Any, saved: Any) -> Array:
    """An array of this layout in the memory of another one or of a tensor: the live one if it is.

    ``TypeError`` and ``ValueError`` where there is no such memory, or it is too small.
    """
    row = _memory(memory)
    if row is None or np.dtype(str(saved[0])).kind not in _NUMBERS:
        raise TypeError("the memory of an array is missing")
    kind, shape, steps, first = saved
    here = type(live) is np.ndarray and live.size and layout(live, start_of(row)) == list(saved)
    if here and np.may_share_memory(live, row):
        return live
    return np.ndarray(
        tuple(map(int, shape)),
        np.dtype(str(kind)),
        buffer=row,
        offset=int(first),
        strides=tuple(map(int, steps)),
    )


def row_of(value: Array) -> Array:
    """All of an array in the order of its memory."""
    found = _row(value)
    if found is None:
        raise ValueError("the items of an array are not in one row")
    return found


def _memory(memory: Any) -> Array | None:
    if isinstance(memory, Tensor):
        storage = memory.detach().untyped_storage()
        items = storage.nbytes() // memory.element_size()
        return memory.detach().as_strided((items,), (1,), 0).numpy()
    return _row(memory) if isinstance(memory, np.ndarray) else None


def _row(value: Array) -> Array | None:
    if value.flags.c_contiguous:
        return value.reshape(-1).view(np.ndarray)
    return value.T.reshape(-1).view(np.ndarray) if value.flags.f_contiguous else None


def is_mapped(value: Any) -> bool:
    """Whether what is written to an array goes to a file."""
    while isinstance(value, np.ndarray):
        if isinstance(value, np.memmap):
            return True
        value = value.base
    return isinstance(value, mmap.mmap)
