"""Datasets that are held in memory as a few tensors with one row for each sample; and batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from holdfast.training import Gathered


class TensorRows(Dataset[dict[str, Tensor]]):
    """Samples and batches are dicts of rows of these tensors."""

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: rows[index] for name, rows in self.tensors.items()}

    def __getitems__(self, indices: Sequence[int]) -> Gathered:
        """A whole batch at once."""
        which = torch.as_tensor(indices, dtype=torch.int64)
        batch = {name: rows.index_select(0, which) for name, rows in self.tensors.items()}
        return Gathered(batch, len(which))


def batches(
    data: Any, size: int, *, most: int | None = None, device: torch.device | str = "cpu"
) -> Iterator[dict[str, Tensor]]:
    """The samples of a dataset of the family in their order, ``most`` of them, on a device."""
    count = len(data) if most is None else min(most, len(data))
    for first in range(0, count, size):
        rows = data.__getitems__(range(first, min(first + size, count))).batch
        yield {name: value.to(device) for name, value in rows.items()}


def first_batch(data: Any, size: int, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """The first samples."""
    return next(batches(data, size, most=size, device=device))
