"""The ranks of a run under torchrun: who is who, and the few things they have to agree on.

One process needs none of this and every function is then a plain answer. What is synchronised
is the gradient, by ``DistributedDataParallel``; a guard that sees the reduced gradient decides
alike on all ranks. FSDP2 will be another ``wrap``.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn.parallel import DistributedDataParallel

from ..errors import SettingsError, UsageError
from .device import Place

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
    distributed.init_process_group(backend, timeout=_PATIENCE)
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


def wrap(model: nn.Module, place: Place, *, late: bool = False) -> nn.Module:
    """The model as the loop calls it: gradients are averaged over ranks.

    ``late``: not during backward but by ``average``, so that a rank may begin a step anew.
    """
    if place.world == 1:
        return model
    if late:
        _broadcast([*model.parameters(), *model.buffers()])
        return model
    devices = [place.device] if place.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices)


def unsynchronised(net: nn.Module, inner: bool) -> contextlib.AbstractContextManager[None]:
    """For a micro-batch that is not the last of its window: nothing is sent yet."""
    if inner and isinstance(net, DistributedDataParallel):
        return net.no_sync()
    return contextlib.nullcontext()


@torch.no_grad()
def average(model: nn.Module, place: Place) -> None:
    """What the wrapped model does during backward, at once: mean gradients, the first's buffers."""
    if place.world == 1:
        return
    gradients: list[Tensor] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            raise UsageError(
                f"{name} had no gradient in this step, and ranks cannot agree without one; "
                "freeze it (requires_grad=False) or use it in the loss"
            )
        if parameter.grad is not None:
            gradients.append(parameter.grad)
    for bucket in _buckets(gradients):
        together = _flatten_dense_tensors(bucket)
        distributed.all_reduce(together)
        together /= place.world
        for tensor, mean in zip(bucket, _unflatten_dense_tensors(together, bucket), strict=True):
            tensor.copy_(mean)
    _broadcast(list(model.buffers()))


@torch.no_grad()
def _broadcast(tensors: list[Tensor]) -> None:
    """Give every rank what the first has."""
    for bucket in _buckets(tensors):
        together = _flatten_dense_tensors(bucket)
        distributed.broadcast(together, 0)
        for tensor, value in zip(bucket, _unflatten_dense_tensors(together, bucket), strict=True):
            tensor.copy_(value)


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
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


def everyone(mine: T, place: Place) -> list[T]:
    """What each rank gives, a small plain object, in the order of ranks; on every rank."""
    if place.world == 1:
        return [mine]
    every: list[Any] = [None] * place.world
    distributed.all_gather_object(every, mine)
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
        mine = torch.zeros(longest, dtype=torch.uint8, device="cpu")
        if name in rows:
            raw = rows[name].contiguous().reshape(-1).view(torch.uint8)
            mine[: len(raw)] = raw
        every = [torch.empty_like(mine) for _ in range(place.world)]
        if longest:
            distributed.all_gather(every, mine)
        parts: list[Tensor] = []
        for head, sent in zip(found, every, strict=True):
            if head is not None:
                dtype, shape = head
                raw = sent[: math.prod(shape) * dtype.itemsize]
                parts.append(raw.view(dtype).reshape(shape))
        gathered[name] = torch.cat(parts)
    return gathered


def anyone(flag: bool, place: Place) -> bool:
    """Whether it is true on any rank."""
    if place.world == 1:
        return flag
    asked = torch.tensor(float(flag), device="cpu")
    distributed.all_reduce(asked, distributed.ReduceOp.MAX)
    return bool(asked)
