"""The ranks of a run under torchrun: who is who, and the few things they have to agree on.

One process needs none of this and every function is then a plain answer. How gradients come
together is said in ``parallel``.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from ..errors import SettingsError, UsageError
from .device import Place
from .rendezvous import fresh_store

T = TypeVar("T")

# Ranks that wait longer than this for one that has died end with an error instead of hanging.
_PATIENCE = timedelta(minutes=10)
# As DistributedDataParallel has it.
_BUCKET = 25 * 2**20


@contextlib.contextmanager
def joined(device: str = "auto") -> Iterator[Place]:
    """Take this process's place among the ranks, and leave it at the end."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rank, local = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    place = Place(_device(device, local), rank, world, local)
    if world == 1 or distributed.is_initialized():
        yield place
        return
    if place.device.type == "cuda":
        torch.cuda.set_device(place.device)
    # gloo beside nccl: what the hosts agree on never waits for a GPU.
    backend = "cpu:gloo,cuda:nccl" if place.device.type == "cuda" else "gloo"
    store = fresh_store(rank, world, _PATIENCE)
    own: dict[str, Any] = (
        {} if store is None else {"store": store, "rank": rank, "world_size": world}
    )
    distributed.init_process_group(backend, timeout=_PATIENCE, **own)
    try:
        yield place
    finally:
        distributed.destroy_process_group()


def _device(name: str, local: int) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingsError(f"device {name!r} is none torch knows; use auto, cpu or cuda") from None
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise SettingsError(f"device is {name}, but torch sees no CUDA device; use auto or cpu")
    device = torch.device("cuda", local if device.index is None else device.index)
    count = torch.cuda.device_count()
    if device.index >= count:
        raise SettingsError(f"device {device} does not exist: there are {count}; start fewer ranks")
    return device


@torch.no_grad()
def broadcast(tensors: list[Tensor]) -> None:
    """Give every rank what the first has."""
    for bucket in buckets(tensors):
        all_ranks = _flatten_dense_tensors(bucket)
        distributed.broadcast(all_ranks, 0)
        for tensor, value in zip(bucket, _unflatten_dense_tensors(all_ranks, bucket), strict=True):
            tensor.copy_(value)


def buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one type, a few megabytes at a time: few messages, and little memory for them."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        size = sum(one.nbytes for one in bucket)
        if bucket and (tensor.dtype != bucket[0].dtype or size + tensor.nbytes > _BUCKET):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def total(values: Mapping[str, float], place: Place) -> dict[str, float]:
    """Each number summed over ranks; names may differ between them."""
    every = everyone(dict(values), place)
    names = dict.fromkeys(name for one in every for name in one)
    return {name: sum(one.get(name, 0.0) for one in every) for name in names}


def everyone(own_part: T, place: Place) -> list[T]:
    """What each rank gives, a small plain object, in the order of ranks; on every rank."""
    if place.world == 1:
        return [own_part]
    every: list[Any] = [None] * place.world
    distributed.all_gather_object(every, own_part)
    return every


def gather_rows(rows: Mapping[str, Tensor], place: Place) -> dict[str, Tensor]:
    """The rows of all ranks, one rank after the other; tensors on the CPU.

    Names, types and numbers of rows may differ between ranks; rows of one name have one shape.
    Bytes are sent: not every type of number can be.
    """
    if place.world == 1:
        return dict(rows)
    heads = everyone({n: (t.dtype, tuple(t.shape)) for n, t in rows.items()}, place)
    gathered: dict[str, Tensor] = {}
    for name in sorted({name for head in heads for name in head}):
        found = [head.get(name) for head in heads]
        sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in filter(None, found)]
        longest = max(sizes)
        own_part = torch.zeros(longest, dtype=torch.uint8, device="cpu")
        if name in rows:
            raw = rows[name].contiguous().reshape(-1).view(torch.uint8)
            own_part[: len(raw)] = raw
        every = [torch.empty_like(own_part) for _ in range(place.world)]
        if longest:
            distributed.all_gather(every, own_part)
        parts: list[Tensor] = []
        for head, sent in zip(found, every, strict=True):
            if head is not None:
                dtype, shape = head
                raw = sent[: math.prod(shape) * dtype.itemsize]
                parts.append(raw.view(dtype).reshape(shape))
        gathered[name] = torch.cat(parts)
    return gathered


def in_step(batches: Iterable[T], place: Place) -> Iterator[tuple[T, bool]]:
    """The batches of this rank, as many on every rank, and whether one counts.

    For what all ranks have to compute together: one that has no batch left gets its last one
    again, which does not count. All ranks raise an error where one has none at all.
    """
    if place.world == 1:
        yield from ((batch, True) for batch in batches)
        return
    source, last = iter(batches), list[T]()
    while True:
        found = next(source, None)
        if found is not None:
            last = [found]
        have = everyone((found is not None, bool(last)), place)
        if not any(new for new, _ in have):
            return
        if not all(some for _, some in have):
            raise UsageError(
                f"of {place.world} ranks {[some for _, some in have].count(False)} have no sample "
                "to validate on, and with train.parallel=fsdp all of them compute together; give "
                "at least one for each rank"
            )
        yield last[0], found is not None


def anyone(flag: bool, place: Place) -> bool:
    """Whether it is true on any rank."""
    if place.world == 1:
        return flag
    asked = torch.tensor(float(flag), device="cpu")
    distributed.all_reduce(asked, distributed.ReduceOp.MAX)
    return bool(asked)
