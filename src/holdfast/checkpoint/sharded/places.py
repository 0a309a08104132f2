"""How the part of a tensor that one rank holds lies in the whole.

Read from a live ``DTensor`` when its local part is copied: the copy is a plain tensor, its place
goes beside it, by the name that the tensor has in the state (``tree.paths``).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from ...errors import CheckpointError
from ..tree import flatten, paths

REPLICATED = ("models", "optimizers", "ema")
"""Parts of a state whose plain tensors are the same on every rank; others are a rank's own."""

# FSDP2 does not synchronise buffers, so that a rank keeps its own where that costs little.
SMALL = 1 << 20


@dataclass(frozen=True, slots=True)
class PartPlace:
    """Where the local part lies: its offset and size in a tensor of that global shape.

    ``replica`` of ``replicas`` ranks hold the same part (HSDP); one of them writes it.
    """

    shape: tuple[int, ...]
    offset: tuple[int, ...]
    size: tuple[int, ...]
    replica: int = 0
    replicas: int = 1

    def writes(self, name: str) -> bool:
        """Whether this rank writes the tensor of that name: ranks share the work by name."""
        return zlib.crc32(name.encode()) % self.replicas == self.replica

    @classmethod
    def whole(cls, shape: Sequence[int], rank: int = 0, world: int = 1) -> PartPlace:
        """Of a tensor that each of ``world`` ranks has all of."""
        return cls(tuple(shape), (0,) * len(shape), tuple(shape), rank, world)


def place_of(tensor: Tensor, name: str = "a tensor") -> PartPlace | None:
    """The place of the local part of a ``DTensor``, None for any other tensor."""
    if not isinstance(tensor, DTensor):
        return None
    mesh, placements = tensor.device_mesh, tensor.placements
    shape, at = tuple(tensor.shape), mesh.get_coordinate()
    if at is None:
        return PartPlace(shape, (0,) * len(shape), (0,) * len(shape))
    if any(not isinstance(one, Shard | Replicate) and _partial(one) for one in placements):
        raise CheckpointError(
            f"{name} is a sum that is not made yet ({placements}); save it once it is reduced"
        )
    if any(type(one) not in (Shard, Replicate) for one in placements) and any(
        extent % mesh.size() for extent in shape[:1]
    ):
        raise CheckpointError(
            f"{name} of shape {list(shape)} is sharded as {placements} over {mesh.size()} ranks, "
            "which does not divide evenly: its parts have no simple place; pad it"
        )
    (chunk,) = cast("Any", tensor).__create_chunk_list__()
    same = [d for d, one in enumerate(placements) if isinstance(one, Replicate)]
    replica = 0
    for dimension in same:
        replica = replica * mesh.size(dimension) + at[dimension]
    return PartPlace(
        shape,
        tuple(chunk.offsets),
        tuple(chunk.sizes),
        replica,
        math.prod(mesh.size(dimension) for dimension in same),
    )


def _partial(placement: Any) -> bool:
    return bool(placement.is_partial())


def places_in(tree: Any) -> dict[str, PartPlace]:
    """The places of the sharded tensors of a live state, by name."""
    skeleton, tensors = flatten(tree)
    return named_places(paths(skeleton), tensors)


def named_places(names: Sequence[str], tensors: Sequence[Tensor]) -> dict[str, PartPlace]:
    """The places of those that are sharded."""
    found = ((name, place_of(one, name)) for name, one in zip(names, tensors, strict=True))
    return {name: place for name, place in found if place is not None}


def trained(tree: Any) -> set[str]:
    """Names of the parameters in the optimizers of a state: equal on all ranks if plain."""
    listed = tree.get("optimizers", ()) if isinstance(tree, Mapping) else ()
    entries = [one for one in listed if isinstance(one, Mapping)]
    return {f"models.{row[0]}" for one in entries for row in one.get("parameters", ())}


def common_place(
    name: str, tensor: Tensor, rank: int, world: int, parameters: set[str]
) -> PartPlace | None:
    """The place of a plain tensor that all ranks have alike; None for a rank's own."""
    part = name.partition(".")[0]
    if part not in REPLICATED:
        return None
    if part == "models" and name not in parameters and tensor.nbytes <= SMALL:
        return None
    return PartPlace.whole(tensor.shape, rank, world)


def sharded_like(tree: Mapping[str, Any]) -> dict[str, DTensor]:
    """The sharded tensors of a live state by name, and the parameters for what belongs to them.

    ``optimizers.0.state.3`` and ``gradients.0.3`` are the fourth parameter of an optimizer.
    """
    skeleton, tensors = flatten(tree)
    named = zip(paths(skeleton), tensors, strict=True)
    found = {name: one for name, one in named if isinstance(one, DTensor)}
    for number, entry in enumerate(tree.get("optimizers", ())):
        for index, (name, *_) in enumerate(entry.get("parameters", ())):
            if f"models.{name}" in found:
                found[f"optimizers.{number}.state.{index}"] = found[f"models.{name}"]
                found[f"gradients.{number}.{index}"] = found[f"models.{name}"]
    return found
