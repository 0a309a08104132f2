"""A state for one rank, whatever the number of ranks that saved it.

The planners of ``torch.distributed.checkpoint`` say which parts of which chunks a rank needs; only
these chunks are read, each against its checksum. Values are copied, never computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import rng
from ..record import damaged
from ..stream import true_dtype
from ..tree import paths, unflatten
from .places import PartPlace
from .storage import FolderReader, LocalPart, PartLoadPlanner

Placing = Callable[[str, Sequence[int]], PartPlace]


def load_folder(
    path: Path,
    *,
    rank: int = 0,
    place: Placing | None = None,
    device: str | torch.device = "cpu",
) -> tuple[Any, dict[str, Any]]:
    """Read what one rank needs: the tree, with local parts as plain tensors, and the index.

    The ``rank`` in the fields is the one whose RNG state and loader position these are.

    Args:
        path: its folder.
        rank: whose RNG state and loader position; one that the saved run did not have gets
            those of another, and keeps the RNG state that it has.
        place: where a tensor of that name and global shape lies on this rank; whole by default.
        device: where the tensors go.
    """
    reader = FolderReader(path)
    fields = reader.fields
    saved = int(fields["world"])
    skeleton, own = reader.own(rank % saved)
    names = paths(skeleton)
    parts: dict[str, LocalPart] = {}
    for name in (one for one in names if one in fields["chunks"]):
        dtype, shape = fields["tensors"][name]
        found = PartPlace.whole(shape) if place is None else place(name, shape)
        saved_bytes = sum(end - begin for *_, begin, end, _ in fields["chunks"][name])
        if math.prod(found.size) * true_dtype(dtype, name).itemsize > saved_bytes:
            raise damaged(path, f"{name} of shape {list(shape)} has {saved_bytes:,} bytes")
        empty = torch.empty(found.size, dtype=true_dtype(dtype, name))
        parts[name] = LocalPart(empty, found)
    planner = PartLoadPlanner()
    metadata = reader.read_metadata()
    planner.set_up_planner(parts, metadata)
    reader.set_up_storage_reader(metadata, is_coordinator=False)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    reader.read_data(planner.finish_plan(plan), planner).wait()
    read = [parts[name].tensor if name in parts else own[name] for name in names]
    tree = unflatten(skeleton, [tensor.to(device) for tensor in read])
    if rank >= saved and isinstance(tree, dict) and "dice" in tree:
        tree["dice"] = rng.state()
    return tree, {**fields, "rank": rank % saved}
