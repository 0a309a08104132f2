"""A row of sums: which part belongs to which gradient, and how it comes to the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

CHUNK = 2048
CHUNKS = 32
"""Of so many numbers each, one after another: a block, which one program on the device measures."""
_BLOCK = CHUNK * CHUNKS
# Rows on their way to the host before we fall back to a copy: the host may run this far ahead.
_PINNED_ROWS = 64
# A NaN that no arithmetic makes: what still holds it has not been written by the device.
_PENDING = 0x7FF4_DEAD_BEEF_0001


@dataclass(slots=True)
class Layout:
    """Which part of a row of sums belongs to which gradient; kept while shapes stay the same."""

    sizes: list[int]
    starts: np.ndarray
    blocks: int
    buffers_at: int
    """The block at which buffers begin."""
    on_device: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def of(cls, sizes: list[int], gradients: int, device: torch.device) -> Layout:
        """Cut every tensor into blocks, an empty one into a block of nothing."""
        counts = [max(1, -(-size // _BLOCK)) for size in sizes]
        owner = np.repeat(np.arange(len(sizes)), counts)
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
        offset = (np.arange(len(owner)) - starts[owner]) * _BLOCK
        columns = (np.array(sizes, dtype=np.int64), owner.astype(np.int64), offset.astype(np.int64))
        tables = [torch.from_numpy(c).pin_memory().to(device, non_blocking=True) for c in columns]
        buffers_at = int(starts[gradients]) if gradients < len(sizes) else len(owner)
        return cls(sizes, starts, len(owner), buffers_at, (tables[0], tables[1], tables[2]))

    def norms(self, sums: np.ndarray) -> np.ndarray:
        """L2 norm per tensor from the sums of its blocks."""
        return np.sqrt(np.add.reduceat(sums[: self.blocks], self.starts))


class NormSums:
    """Norms of all gradients that are worked out when somebody asks: few steps write them."""

    def __init__(self, layout: Layout, sums: np.ndarray, gradients: int) -> None:
        self._layout, self._sums, self._gradients = layout, sums, gradients

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        norms = self._layout.norms(self._sums)[: self._gradients]
        return norms.astype(dtype or np.float64, copy=False)


class PinnedRow:
    """A row in pinned memory that the device writes and the host reads when it is complete.

    Args:
        home: where it waits to be used again.
        table: all rows.
        words: the same numbers as integers.
        at: which of them it is.
    """

    def __init__(self, home: deque[PinnedRow], table: Tensor, words: np.ndarray, at: int) -> None:
        self.row = table[at]
        self.address = self.row.data_ptr()
        self.home, self.words, self.at = home, words, at
        self.expected = 0
        """So many numbers are on their way."""

    def take(self) -> np.ndarray | None:
        """The numbers, and the row is free again; None until all of them have arrived."""
        values = _arrived(self.words[self.at, : self.expected])
        if values is not None:
            self.home.append(self)
        return values


class PinnedRows:
    """Several rows of one width that are read together: for each alone it would cost as much."""

    def __init__(self, rows: Sequence[PinnedRow]) -> None:
        self._rows = rows
        self._words, self._width = rows[0].words, rows[0].expected
        first, count = rows[0].at, len(rows)
        at = [row.at for row in rows]
        # They are handed out in turn: mostly a part of the table, but for its end.
        whole = at == [*range(first, first + count)]
        self._at: slice | list[int] = slice(first, first + count) if whole else at

    def take(self) -> np.ndarray | None:
        """The numbers, a row for each, and the rows are free; None until all have arrived."""
        if isinstance(self._at, slice):
            values = _arrived(self._words[self._at, : self._width])
        else:
            values = self._words[self._at, : self._width]
            if (values == _PENDING).any():
                return None
            self._words[self._at, : self._width] = _PENDING
            values = values.view(np.float64)
        if values is not None:
            self._rows[0].home.extend(self._rows)
        return values


def _arrived(words: np.ndarray) -> np.ndarray | None:
    """A copy of numbers the device has written, which makes room; None where one is missing."""
    if words.item(-1) == _PENDING:  # written last
        return None
    values = words.copy()
    if (values == _PENDING).any():
        return None
    words.fill(_PENDING)
    return values.view(np.float64)


def pinned_rows(width: int) -> deque[PinnedRow]:
    """Rows of so many numbers; each comes back when it has been read."""
    home: deque[PinnedRow] = deque()
    table = torch.empty(_PINNED_ROWS, width, dtype=torch.float64, pin_memory=True)
    words = table.numpy().view(np.int64)
    words.fill(_PENDING)
    home.extend(PinnedRow(home, table, words, at) for at in range(_PINNED_ROWS))
    return home
