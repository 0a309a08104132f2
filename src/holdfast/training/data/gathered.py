"""Batches that are gathered at once: rows of a few tensors, copied into one fresh batch."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor
from torch.utils.data import default_collate, get_worker_info

from ...errors import UsageError

Part = tuple[Sequence[Any], Tensor]
"""A block of samples, and the numbers of some of them."""


class Gathered(Sequence[Any]):
    """A batch that is gathered already; to a ``collate_fn`` that does not know, its samples.

    Args:
        batch: a tuple or a dict of tensors, one row for each sample.
        length: how many samples.
    """

    def __init__(self, batch: Any, length: int) -> None:
        self.batch = batch
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(f"sample {index} of a batch of {self._length}")
        if isinstance(self.batch, dict):
            return {key: tensor[index] for key, tensor in self.batch.items()}
        return tuple(tensor[index] for tensor in self.batch)


def collate(samples: Any) -> Any:
    """``default_collate``, which hands on what is gathered already.

    >>> collate([1, 2])
    tensor([1, 2])
    """
    return samples.batch if isinstance(samples, Gathered) else default_collate(samples)


def select(source: Tensor, which: Tensor) -> Tensor:
    """Some rows of a tensor, in memory that a worker can hand over."""
    out = _empty((len(which), *source.shape[1:]), source.dtype)
    return torch.index_select(source, 0, which, out=out)


def row(block: Sequence[Any], index: int) -> Any:
    """A sample of a block that does not keep the whole block in memory."""
    found = block[index]
    if not isinstance(block, Gathered):
        return found
    if isinstance(found, dict):
        return {key: value.clone() for key, value in found.items()}
    return tuple(value.clone() for value in found)


def joined(parts: Sequence[Part]) -> Gathered | list[Any]:
    """One batch of the samples of some parts, which it does not keep in memory.

    Tensors are copied once, straight into the batch. Blocks of any other kind give a list of
    samples, for a ``collate_fn``.

    >>> block = Gathered((torch.arange(5), torch.ones(5, 2)), 5)
    >>> joined([(block, torch.tensor([4, 0])), (block, torch.tensor([2]))]).batch[0]
    tensor([4, 0, 2])
    """
    blocks = [block for block, _ in parts if isinstance(block, Gathered)]
    if len(blocks) < len(parts):
        return [row(block, index) for block, which in parts for index in which.tolist()]
    names = [_names(block) for block in blocks]
    if any(other != names[0] for other in names):
        shown = next(other for other in names if other != names[0])
        raise UsageError(
            f"the shards of a stream hold other tensors: {names[0]} and {shown}; write them alike"
        )
    indices = [which for _, which in parts]
    rows = {name: _column(name, [one.batch[name] for one in blocks], indices) for name in names[0]}
    formed = rows if isinstance(blocks[0].batch, dict) else tuple(rows.values())
    return Gathered(formed, sum(map(len, indices)))


def _names(block: Gathered) -> list[Any]:
    return list(block.batch) if isinstance(block.batch, dict) else list(range(len(block.batch)))


def _column(name: Any, sources: Sequence[Tensor], indices: Sequence[Tensor]) -> Tensor:
    """Rows of one tensor of each block; of the widest of their dtypes."""
    shape = sources[0].shape[1:]
    for source in sources:
        if source.shape[1:] != shape:
            raise UsageError(
                f"the shards of a stream hold samples of other shapes: {name} of "
                f"{tuple(shape)} and {tuple(source.shape[1:])}; write them alike"
            )
    dtype = functools.reduce(torch.promote_types, [source.dtype for source in sources])
    out = _empty((sum(map(len, indices)), *shape), dtype)
    for source, which, into in zip(sources, indices, out.split([*map(len, indices)]), strict=True):
        if source.dtype is dtype:
            torch.index_select(source, 0, which, out=into)
        else:
            into.copy_(source.index_select(0, which))
    return out


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if get_worker_info() is None:
        return torch.empty(shape, dtype=dtype, device="cpu")
    # Straight into the memory it is handed over in, as default_collate does.
    out = torch.empty(0, dtype=dtype, device="cpu")
    size = math.prod(shape) * dtype.itemsize
    return out.set_(torch.UntypedStorage._new_shared(size, device="cpu")).resize_(shape)
