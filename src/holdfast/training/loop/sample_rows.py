"""Rows of a validation: what a measure says about each sample, gathered over batches and ranks.

A percentile is not the mean of percentiles of batches. So rows are kept, on their device, and move
to the host in pieces without making anybody wait; they are read when the validation is over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import torch
from torch import Tensor

from ...errors import UsageError
from .. import distributed
from ..device import Place

# Bytes of rows that a GPU holds before they move to the host; a guess.
_PIECE = 1 << 26


@dataclasses.dataclass
class _Column:
    """The rows of one name: pieces on the host, and those that came after them."""

    shape: tuple[int, ...]
    moved: list[Tensor] = dataclasses.field(default_factory=list[Tensor])
    held: list[Tensor] = dataclasses.field(default_factory=list[Tensor])
    bytes_held: int = 0


class SampleRows:
    """Collects the rows of one rank; ``gathered`` joins them with those of the others."""

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}
        self._copied: torch.cuda.Event | None = None
        self.problem = ""
        """What was wrong with the rows of this rank; raised on all of them at the end."""

    def add(self, name: str, rows: Tensor, samples: int) -> None:
        """Keep the rows of a batch of so many samples."""
        if rows.shape[0] != samples:
            self.problem = self.problem or (
                f"measure gave {rows.shape[0]} rows of {name} for a batch of {samples} samples; "
                "give one for each, or a number without dimensions"
            )
            return
        column = self._columns.setdefault(name, _Column(tuple(rows.shape[1:])))
        if column.shape != tuple(rows.shape[1:]):
            self.problem = self.problem or _two_shapes(name, column.shape, tuple(rows.shape[1:]))
            return
        # A copy: a view would keep all it was cut from, and a worker's batch its open file.
        column.held.append(rows.detach().clone(memory_format=torch.contiguous_format))
        column.bytes_held += rows.nbytes
        if rows.is_cuda and column.bytes_held >= _PIECE:
            self._move(column)

    def gathered(self, place: Place, *, numbers: Collection[str] = ()) -> dict[str, Tensor]:
        """All rows on the CPU, the same on every rank: those of the first rank come first.

        ``numbers``: names that were numbers of a batch, on any rank.
        """
        for column in self._columns.values():
            self._move(column)
        if self._copied is not None:
            self._copied.synchronize()
        own = {name: torch.cat(column.moved) for name, column in self._columns.items()}
        problems, shapes = self._agree(place)
        for name, shape in sorted(shapes):
            others = [one for other, one in shapes if other == name and one != shape]
            problems += [_two_shapes(name, shape, other) for other in others]
            if name in numbers:
                problems.append(
                    f"measure gave {name} as a number of some batches and as rows of others; "
                    "give the same for every batch"
                )
        if problems:
            raise UsageError(problems[0])
        return distributed.gather_rows(own, place)

    def _agree(self, place: Place) -> tuple[list[str], set[tuple[str, tuple[int, ...]]]]:
        """Problems and shapes of all ranks, so that all of them go on, or none."""
        known = {name: column.shape for name, column in self._columns.items()}
        every = distributed.everyone((self.problem, known), place)
        shapes = {(name, shape) for _, known in every for name, shape in known.items()}
        return [problem for problem, _ in every if problem], shapes

    def _move(self, column: _Column) -> None:
        """Start copying what is held to the host."""
        if not column.held:
            return
        rows = torch.cat(column.held)
        column.held, column.bytes_held = [], 0
        if rows.is_cuda:
            pinned_row = torch.empty(rows.shape, dtype=rows.dtype, device="cpu", pin_memory=True)
            pinned_row.copy_(rows, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()
            rows = pinned_row
        column.moved.append(rows.cpu())


def _two_shapes(name: str, one: tuple[int, ...], other: tuple[int, ...]) -> str:
    first, second = sorted((one, other))
    return (
        f"measure gave rows of {name} of the shapes {first} and {second}; "
        "rows of all batches have one shape"
    )
