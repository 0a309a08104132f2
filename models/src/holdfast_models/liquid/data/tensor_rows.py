"""Datasets that are held in memory as a few tensors with one row for each sample."""

from __future__ import annotations

from collections.abc import Sequence

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
