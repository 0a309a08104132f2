"""Embedded pairs in one or several tables, read as if they were one; nothing is copied whole.

Shapes: B batch, N pairs, E teacher width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from holdfast import HoldfastError

_BLOCK = 1 << 19  # numbers that are in memory together where all rows are looked at


class PairTable(Protocol):
    """Inputs and targets, in memory or mapped from a file."""

    @property
    def x_NE(self) -> Tensor:
        """Inputs."""
        ...

    @property
    def y_NE(self) -> Tensor:
        """Targets."""
        ...


class Embedded(NamedTuple):
    """A table in memory."""

    x_NE: Tensor
    y_NE: Tensor


class Tables:
    """Rows of one or several tables of the same width, numbered through.

    Args:
        parts: of any float type, in memory or mapped.
        unit: bring every row that is read to length 1.
    """

    def __init__(self, parts: Sequence[PairTable], *, unit: bool = False) -> None:
        for part in parts:
            shapes = list(part.x_NE.shape), list(part.y_NE.shape)
            if shapes[0] != shapes[1] or shapes[0][1:] != list(parts[0].x_NE.shape[1:]):
                raise HoldfastError(
                    f"pairs: inputs {shapes[0]}, targets {shapes[1]} beside rows of width "
                    f"{parts[0].x_NE.shape[1]}; give as many of each, and one width"
                )
        self.parts, self._unit = tuple(parts), unit
        self.width = parts[0].x_NE.shape[1]
        """E."""
        self._ends = list(accumulate(len(part.x_NE) for part in parts))

    def __len__(self) -> int:
        return self._ends[-1]

    def gather(self, rows_B: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets [B, E] of these rows, float32 copies."""
        return self._taken([part.x_NE for part in self.parts], rows_B), self.targets(rows_B)

    def targets(self, rows_B: Tensor) -> Tensor:
        """Targets alone."""
        return self._taken([part.y_NE for part in self.parts], rows_B)

    def _taken(self, tables: Sequence[Tensor], rows_B: Tensor) -> Tensor:
        if len(tables) == 1:
            x_BE = tables[0].index_select(0, rows_B).float()
        else:
            x_BE = torch.empty(len(rows_B), self.width, device="cpu")
            part_B = torch.bucketize(rows_B, torch.tensor(self._ends, device="cpu"), right=True)
            for number in part_B.unique().tolist():
                table_NE, here_B = tables[number], part_B == number
                first = self._ends[number] - len(table_NE)
                x_BE[here_B] = table_NE.index_select(0, rows_B[here_B] - first).float()
        return functional.normalize(x_BE, dim=1) if self._unit else x_BE


def blocks_of(x_N: Tensor, width: int) -> Iterator[Tensor]:
    """Some rows at a time, or their numbers: as many as can be in memory at this width."""
    together = max(1, _BLOCK // width)
    return (x_N[first : first + together] for first in range(0, len(x_N), together))
