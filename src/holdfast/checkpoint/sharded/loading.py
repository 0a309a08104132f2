"""A state for one rank, whatever the number of ranks that saved it.

The planners of ``torch.distributed.checkpoint`` say which parts of which chunks a rank needs; only
these chunks are read, each against its checksum. Values are copied, never computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import rng
from ..file import load as load_file
from ..record import FOLDER_NAME, INDEX
from ..stream import true_dtype
from ..tree import flatten, paths, unflatten
from .places import Place, places_for
from .storage import FolderReader, LocalPart, PartLoadPlanner

Placing = Callable[[str, Sequence[int]], Place]


def is_folder(path: Path) -> bool:
    """Whether a path means a checkpoint over ranks."""
    return path.name == INDEX or FOLDER_NAME.fullmatch(path.name) is not None


def load(
    path: Path, *, rank: int = 0, place: Placing | None = None
) -> tuple[Any, dict[str, Any]]:
    """Read what one rank needs: the tree, with local parts as plain tensors, and the index.

    Args:
        path: the folder, or the index in it.
        rank: whose RNG state and loader position; one that the saved run did not have gets
            those of another, and keeps the RNG state that it has.
        place: where a tensor of that name and global shape lies on this rank; whole by default.
    """
    reader = FolderReader(path.parent if path.name == INDEX else path)
    fields = reader.fields
    saved = int(fields["world"])
    skeleton, own = reader.own(rank % saved)
    names = paths(skeleton)
    parts: dict[str, LocalPart] = {}
    for name in (one for one in names if one in fields["chunks"]):
        dtype, shape = fields["tensors"][name]
        found = Place.whole(shape) if place is None else place(name, shape)
        empty = torch.empty(found.size, dtype=true_dtype(dtype, name))
        parts[name] = LocalPart(empty, found)
    planner = PartLoadPlanner()
    metadata = reader.read_metadata()
    planner.set_up_planner(parts, metadata)
    reader.set_up_storage_reader(metadata, is_coordinator=False)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    reader.read_data(planner.finish_plan(plan), planner).wait()
    tree = unflatten(skeleton, [parts[n].tensor if n in parts else own[n] for n in names])
    if rank >= saved and isinstance(tree, dict) and "dice" in tree:
        tree["dice"] = rng.state()
    return tree, fields


def load_for(live: Mapping[str, Any], path: Path, *, rank: int = 0) -> tuple[Any, dict[str, Any]]:
    """Read a checkpoint of either form for a live state, whose tensors may be ``DTensor``s.

    Gives what ``file.load`` does, but each tensor that is sharded in the live state comes as the
    local part of this rank.
    """
    place = places_for(live)
    if is_folder(path):
        return load(path, rank=rank, place=place)
    tree, fields = load_file(path)
    skeleton, tensors = flatten(tree)
    named = zip(paths(skeleton), tensors, strict=True)
    return unflatten(skeleton, [_cut(t, place(name, t.shape)) for name, t in named]), fields


def _cut(tensor: Tensor, place: Place) -> Tensor:
    if place.size == tuple(tensor.shape):
        return tensor
    for dimension, (at, length) in enumerate(zip(place.offset, place.size, strict=True)):
        tensor = tensor.narrow(dimension, at, length)
    return tensor.clone()
