"""Embedded pairs in one or several tables, read as if they were one; nothing is copied whole.

Shapes: B batch, N pairs, E teacher width.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from holdfast import HoldfastError

from .splits import Table


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

    def __init__(self, parts: Sequence[Table], *, unit: bool = False) -> None:
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
        first, *others = self.parts
        x_BE, y_BE = self._taken(rows_B) if others else _taken(first, rows_B)
        if self._unit:
            x_BE, y_BE = functional.normalize(x_BE, dim=1), functional.normalize(y_BE, dim=1)
        return x_BE, y_BE

    def _taken(self, rows_B: Tensor) -> tuple[Tensor, Tensor]:
        x_BE, y_BE = torch.empty(2, len(rows_B), self.width, device="cpu")
        part_B = torch.bucketize(rows_B, torch.tensor(self._ends, device="cpu"), right=True)
        for number in part_B.unique().tolist():
            part, end = self.parts[number], self._ends[number]
            here_B = part_B == number
            x_BE[here_B], y_BE[here_B] = _taken(part, rows_B[here_B] - (end - len(part.x_NE)))
        return x_BE, y_BE


def _taken(part: Table, rows_B: Tensor) -> tuple[Tensor, Tensor]:
    x_BE = part.x_NE.index_select(0, rows_B).float()
    return x_BE, part.y_NE.index_select(0, rows_B).float()
