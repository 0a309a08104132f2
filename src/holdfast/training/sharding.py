"""FSDP2: each rank keeps a share of weights, gradients and moments, and gathers what it computes.

The share is cut along the first dimension of every tensor. Blocks are gathered one after the
other, so that no rank ever holds the whole model; ``replicas`` copies of it may be kept, each cut
over a part of the ranks (HSDP), so that weights travel within a machine and gradients beyond it.

Operations choose their type by autocast, as on one rank. The policy of FSDP2 says only in which
type weights are gathered: autocast alone would have every block's 16-bit copy of its weights kept
for backward, which is a whole model on every rank.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from ..errors import SettingsError
from .distributed import broadcast
from .module_names import modules_named

if TYPE_CHECKING:
    from .device import Place

_LISTS = (nn.ModuleList, nn.Sequential)


def shard(
    model: nn.Module,
    place: Place,
    *,
    replicas: int = 1,
    blocks: tuple[str, ...] = (),
    dtype: torch.dtype | None = None,
) -> list[str]:
    """Share a model out over the ranks, in place; the names of what is gathered by itself.

    A model that is sharded already, by a recipe that knows better, stays as it is.

    Args:
        model: on the CPU or on its device; every rank then has the values of the first.
        place: this rank.
        replicas: copies of the model.
        blocks: names of the modules that are gathered one at a time, ``*`` for parts of them;
            by default the members of every list of blocks of one kind.
        dtype: in which weights are gathered; gradients are summed in 32 bits.
    """
    if place.world == 1 or is_sharded(model):
        return []
    mesh = _mesh(place, replicas)
    broadcast([*model.parameters(), *model.buffers()])
    wanted = modules_named(model, blocks, "shard") if blocks else repeated_blocks(model)
    policy = MixedPrecisionPolicy(
        param_dtype=dtype,
        reduce_dtype=None if dtype is None else torch.float32,
        cast_forward_inputs=False,  # autocast does, where an operation wants it
    )
    # What is inside another block comes first; the model itself takes what is left.
    inner_first = sorted(wanted, key=lambda name: name.count("."), reverse=True)
    for module in [*(wanted[name] for name in inner_first), model]:
        fully_shard(module, mesh=mesh, mp_policy=policy)
    return list(wanted)


def is_sharded(model: nn.Module) -> bool:
    """Whether a model, or a part of it, is shared out over ranks."""
    return any(isinstance(module, FSDPModule) for module in model.modules())


def repeated_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The members of every list that has several of one kind, each made of modules itself.

    >>> blocks = [nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(2)]
    >>> list(repeated_blocks(nn.Sequential(nn.Linear(4, 8), nn.Sequential(*blocks))))
    ['1.0', '1.1']
    """
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        if not isinstance(module, _LISTS):
            continue
        children = {name: one for name, one in module.named_children() if _is_block(one)}
        kinds = Counter(type(one) for one in children.values())
        for name, one in children.items():
            if kinds[type(one)] > 1:
                found[f"{path}.{name}".lstrip(".")] = one
    return found


def _is_block(module: nn.Module) -> bool:
    """Worth a message of its own: not a single layer, and not a list, which is never called."""
    return (
        not isinstance(module, nn.ModuleList | nn.ModuleDict)
        and next(module.children(), None) is not None
        and next(module.parameters(), None) is not None
    )


def _mesh(place: Place, replicas: int) -> DeviceMesh:
    kind, world = place.device.type, place.world
    if replicas == 1:
        return init_device_mesh(kind, (world,), mesh_dim_names=("shard",))
    if world % replicas:
        fit = ", ".join(str(n) for n in range(1, world + 1) if world % n == 0)
        raise SettingsError(
            f"train.replicas is {replicas}, among which {world} ranks cannot be divided; "
            f"it may be {fit}"
        )
    shape = (replicas, world // replicas)
    return init_device_mesh(kind, shape, mesh_dim_names=("replicate", "shard"))


# ---------------------------------------------------------------------- a step


@contextlib.contextmanager
def unreduced(model: FSDPModule) -> Iterator[None]:
    """Within the block gradients stay on their rank, whole: they are reduced with a later pass."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


# ---------------------------------------------------------------------- between steps


def reshard(model: nn.Module) -> None:
    """Drop what is gathered: weights that are written now count from the next pass on."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@contextlib.contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """Within the block a rank may call the model alone: all of it is gathered, on all ranks.

    Every rank has to enter and to leave it.
    """
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.set_reshard_after_backward(False, recurse=False)
        part.set_requires_gradient_sync(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(part is not model, recurse=False)
            part.set_reshard_after_backward(True, recurse=False)
            part.set_requires_gradient_sync(True, recurse=False)
        reshard(model)
