"""How the gradients of several ranks become one: ``train.parallel``.

With ``ddp`` every rank has the whole model and gradients are averaged during backward, by
``DistributedDataParallel``; a guard that sees the reduced gradient decides alike on all ranks.
With ``fsdp`` every rank has a share of it (``sharding``). Late averaging, with ``reduce_late``,
lets a rank begin a step anew. One process needs none of this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, distributed, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from ..errors import SettingsError, UsageError
from .device import Place
from .distributed import broadcast, buckets
from .precision import Precision
from .sharding import shard, unreduced

ParallelName = Literal["ddp", "fsdp"]


def put_in_place(
    model: nn.Module,
    place: Place,
    precision: Precision,
    say: Callable[[str], None],
    *,
    kind: ParallelName,
    replicas: int,
    blocks: tuple[str, ...],
) -> nn.Module:
    """The model on its device, sharded where that is asked for; before an optimizer is made."""
    if kind == "ddp" or place.world == 1:
        model = model.to(place.device)
        if place.world > 1:
            # Ranks draw their own numbers. An average of the weights is made before the model is
            # wrapped, and begins with these.
            broadcast([*model.parameters(), *model.buffers()])
        return model
    if precision.scaler is not None:
        raise SettingsError(
            "train.parallel=fsdp does not go with fp16, whose loss scale ranks would have to "
            "agree on; set train.precision to bf16 or fp32"
        )
    # Not moved as a whole: that may be more than a device holds.
    names = shard(model, place, replicas=replicas, blocks=blocks, dtype=precision.gathered)
    copies = f", {replicas} copies" if replicas > 1 else ""
    say(
        f"fsdp: the model is shared out over {place.world} ranks{copies}; "
        f"{len(names)} blocks are gathered one at a time"
    )
    return model


def wrap(model: nn.Module, place: Place, *, late: bool = False) -> nn.Module:
    """The model as the loop calls it: gradients are averaged over ranks.

    ``late``: not during backward but by ``complete``, so that a rank may begin a step anew.
    """
    if place.world == 1 or late or isinstance(model, FSDPModule):
        return model
    devices = [place.device] if place.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices)


def unsynchronised(net: nn.Module, inner: bool) -> contextlib.AbstractContextManager[None]:
    """For a micro-batch that is not the last of its window: nothing is sent yet."""
    if inner and isinstance(net, DistributedDataParallel):
        return net.no_sync()
    if inner and isinstance(net, FSDPModule):
        return unreduced(net)
    return contextlib.nullcontext()


def complete(net: nn.Module, place: Place, *, late: bool) -> None:
    """The last backward pass of a step is over: what its wrapper has not done for the ranks."""
    if place.world == 1:
        return
    if late:
        _average(net, place)
    elif isinstance(net, FSDPModule):
        broadcast(_kept_buffers(net))


@torch.no_grad()
def _average(model: nn.Module, place: Place) -> None:
    """What the wrapped model does during backward, at once: mean gradients, the first's buffers."""
    gradients: list[Tensor] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            raise UsageError(
                f"{name} had no gradient in this step, and ranks cannot agree without one; "
                "freeze it (requires_grad=False) or use it in the loss"
            )
        if parameter.grad is not None:
            gradients.append(parameter.grad)
    for bucket in buckets(gradients):
        all_ranks = _flatten_dense_tensors(bucket)
        distributed.all_reduce(all_ranks)
        all_ranks /= place.world
        for tensor, mean in zip(bucket, _unflatten_dense_tensors(all_ranks, bucket), strict=True):
            tensor.copy_(mean)
    broadcast(list(model.buffers()))


def _kept_buffers(model: nn.Module) -> list[Tensor]:
    """Running statistics and the like; others are made anew from what is the same everywhere."""
    return [
        buffer
        for module in model.modules()
        for key, buffer in module._buffers.items()
        if buffer is not None and key not in module._non_persistent_buffers_set
    ]
