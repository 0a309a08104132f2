"""One rank's share of a save, and the end of it, which one rank makes for all.

Each rank writes its data and its part of the index into the temporary folder of the save and goes
on. Rank 0 then waits for the parts of the others, writes the index and gives the folder its name.
Whatever goes wrong before leaves the older checkpoints as they are.

    >>> import tempfile, torch
    >>> folder = tempfile.mkdtemp()
    >>> written = save({"w": torch.ones(2)}, 7, folder=folder)
    >>> written.path.name, written.record["world"]
    ('step-0000000007', 1)
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import CheckpointError
from ...run.durable import replace_file
from ...shards import local
from ..record import FORMAT, WrittenCheckpoint, encode_record, folder_name
from ..tree import flatten, paths
from .agreement import PATIENCE, Ranks, Save
from .index import make_index, part_name, publish, settle
from .places import PartPlace, common_place, named_places, trained
from .storage import FolderWriter, LocalPart, PartSavePlanner

INDEX_RANK = 0
"""The rank that writes the index."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank has of a state, as plain tensors with their places.

    Args:
        skeleton: of the state (``tree.flatten``).
        tensors: local parts, in its order; they may be copies.
        places: of those that all ranks have together, by name. Others are the rank's own.
        rank: of this process.
    """

    skeleton: Any
    tensors: Sequence[Tensor]
    places: Mapping[str, PartPlace]
    rank: int = 0

    def named(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return dict(zip(paths(self.skeleton), self.tensors, strict=True))


def share_of(tree: Any, ranks: Ranks, places: Mapping[str, PartPlace] | None = None) -> Share:
    """Look at a state: what is sharded, what all ranks have alike, what is this rank's own.

    Args:
        tree: the state; a tensor may be a ``DTensor``. Nothing is copied.
        ranks: who saves together.
        places: of tensors that are local parts already, by name: made with ``places_in`` from
            the live state when they were copied.
    """
    skeleton, tensors = flatten(tree)
    names = paths(skeleton)
    known = {**named_places(names, tensors), **(places or {})}
    parameters = trained(tree)
    parts = [local(tensor).detach() for tensor in tensors]
    for name, tensor in zip(names, parts, strict=True):
        if name not in known:
            common = common_place(name, tensor, ranks.rank, ranks.world, parameters)
            if common is not None:
                known[name] = common
    # A tensor without elements has no chunks: each rank keeps its own.
    shared = {name: place for name, place in known.items() if 0 not in place.shape}
    return Share(skeleton, parts, shared, ranks.rank)


def save(
    tree: Any,
    step: int,
    *,
    rank: int = 0,
    world: int = 1,
    store: Any = None,
    folder: str | os.PathLike[str],
    places: Mapping[str, PartPlace] | None = None,
    meta: Mapping[str, Any] | None = None,
    patience: float = PATIENCE,
) -> WrittenCheckpoint:
    """Save a state together with the other ranks, without a collective; waits for the disk.

    ``folder`` is the one that holds the checkpoints, the same on every rank. For several saves
    of one process keep a ``Ranks`` and use ``save_share``.
    """
    ranks = Ranks(rank, world, store)
    fields = {"step": step, **(meta or {})}
    share = share_of(tree, ranks, places)
    return save_share(share, ranks.begin(step), Path(folder), fields, patience)


def save_share(
    share: Share,
    this: Save,
    folder: Path,
    meta: Mapping[str, Any],
    patience: float = PATIENCE,
) -> WrittenCheckpoint:
    """Write this rank's share; on rank 0 wait for the others and write the index.

    A failure is a ``CheckpointError``, and the other ranks are told.

    Returns:
        The checkpoint on rank 0, with its index as the record; on the others what this rank has
        written of it, with its part as the record.
    """
    began = time.perf_counter()
    path, rank = folder / folder_name(this.step), this.ranks.rank
    temporary: Path | None = None
    try:
        temporary = this.temporary(folder)
        fields = _write(share, this, temporary, meta)
        if rank == INDEX_RANK:
            fields = make_index(this.parts(temporary, patience), fields["meta"])
            publish(temporary, fields)
            for one in range(this.ranks.world):
                (temporary / part_name(one)).unlink(missing_ok=True)
            settle(temporary, path)
        elif this.given_up():
            raise CheckpointError(_too_late(this))
    except (OSError, CheckpointError, ValueError) as error:
        cause = _cause(error)
        this.fail(cause)
        if rank == INDEX_RANK:
            this.give_up()
        late = this.given_up() and rank != INDEX_RANK
        if temporary is not None and (late or rank == INDEX_RANK):
            shutil.rmtree(temporary, ignore_errors=True)
        if late:
            raise CheckpointError(_too_late(this)) from error
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"cannot write {path.name} on rank {rank}: {cause}, in {folder}; free some space or "
            "choose another folder with --set checkpoint.dir=DIR"
        ) from error
    return WrittenCheckpoint(path, int(fields["bytes"]), time.perf_counter() - began, fields)


def _write(share: Share, this: Save, temporary: Path, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Write the data of this rank, then its part of the index."""
    if this.given_up():
        raise CheckpointError(_too_late(this))
    named = share.named()
    state = {
        name: LocalPart(named[name], place)
        for name, place in share.places.items()
        if name in named and place.writes(name)
    }
    own = {name: tensor for name, tensor in named.items() if name not in share.places}
    rank = this.ranks.rank
    planner = PartSavePlanner()
    planner.set_up_planner(state, is_coordinator=rank == INDEX_RANK)
    writer = FolderWriter(temporary, rank=rank, own=own, structure=share.skeleton)
    writer.set_up_storage_writer(rank == INDEX_RANK)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    part, _ = writer.write_part(planner.finish_plan(plan), planner)
    left = [name for name in share.places if name in named and name not in state]
    fields = {
        "format": FORMAT, "left": left, "step": this.step, "world": this.ranks.world, **part,
        "meta": {**meta, "step": this.step, "torch": str(torch.__version__)},
    }  # fmt: skip
    try:
        replace_file(temporary / part_name(rank), encode_record(fields))
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"the record cannot be written as JSON ({error}), in the meta data of step "
            f"{this.step}; give numbers, text, lists and dicts"
        ) from error
    return fields


def _too_late(this: Save) -> str:
    return (
        f"the checkpoint of step {this.step} was given up before rank {this.ranks.rank} had "
        f"written its part; rank {INDEX_RANK} says why"
    )


def _cause(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())
