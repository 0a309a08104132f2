"""A row of sums: which part belongs to which gradient, and how it comes to the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

CHUNK = 4096
CHUNKS = 16
"""Of so many numbers each, one after another: a block, which one program on the device measures."""
_BLOCK = CHUNK * CHUNKS
# Rows on their way to the host before we fall back to a copy: the host may run this far ahead.
_LANDINGS = 64
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


class Sums:
    """Norms of all tensors that are worked out when somebody asks: few steps write them."""

    def __init__(self, layout: Layout, sums: np.ndarray) -> None:
        self._layout, self._sums = layout, sums

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._layout.norms(self._sums).astype(dtype or np.float64, copy=False)


class Landing:
    """A row in pinned memory that the device writes and the host reads when it is complete."""

    def __init__(self, home: deque[Landing], row: Tensor) -> None:
        self.row = row
        self.address = row.data_ptr()
        self._home = home
        self._values: np.ndarray = row.numpy()
        self._words = self._values.view(np.int64)
        self._words.fill(_PENDING)
        self.expected = 0
        """So many numbers are on their way."""

    @property
    def complete(self) -> bool:
        """Whether every number has arrived."""
        words = self._words[: self.expected]
        return bool(words[-1] != _PENDING) and not bool((words == _PENDING).any())

    def take(self) -> np.ndarray:
        """The numbers; the row is free again."""
        values = self._values[: self.expected].copy()
        self._words.fill(_PENDING)
        self._home.append(self)
        return values


class Landings:
    """Several of them that are read together."""

    def __init__(self, landings: Sequence[Landing]) -> None:
        self._landings = landings

    @property
    def complete(self) -> bool:
        """Whether every number has arrived."""
        # The last one is written last.
        return self._landings[-1].complete and all(one.complete for one in self._landings)

    def take(self) -> np.ndarray:
        """The numbers, a row for each; the rows are free again."""
        return np.stack([one.take() for one in self._landings])


def landings(width: int) -> deque[Landing]:
    """Rows of so many numbers; each comes back when it has been read."""
    home: deque[Landing] = deque()
    for row in torch.empty(_LANDINGS, width, dtype=torch.float64, pin_memory=True).unbind():
        home.append(Landing(home, row))
    return home
