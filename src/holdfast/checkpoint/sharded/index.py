"""The index of a checkpoint over ranks: made from the parts that the ranks wrote, and checked.

A part says what the data file of one rank holds. The index is the record of the whole: it has the
fields of every record, ``files`` (rank, bytes, checksum of the head, a rank's own tensors) and
``chunks``: for each tensor offset, size, file, first and last byte, checksum. No torch.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import holdfast

from ...errors import CheckpointError
from ...run.durable import replace_file, sync_folder
from ..record import DATA, FORMAT, INDEX, RECORD, SECOND, encode_record


def data_name(rank: int) -> str:
    """The data file of a rank."""
    return f"r{rank}{DATA}"


def part_name(rank: int) -> str:
    """What a rank has written, while the index is not there yet."""
    return f"r{rank}{RECORD}"


def make_index(parts: Sequence[Mapping[str, Any]], meta: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the index; ``CheckpointError`` where the parts do not make up the whole."""
    tensors: dict[str, Any] = {}
    chunks: dict[str, list[list[Any]]] = {}
    for part in sorted(parts, key=lambda one: one["rank"]):
        for name, (at, size, begin, end, sha256) in part["chunks"].items():
            known = tensors.setdefault(name, part["tensors"][name])
            if known != part["tensors"][name]:
                raise CheckpointError(
                    f"{name} is {known} on one rank and {part['tensors'][name]} on rank "
                    f"{part['rank']}; give every rank the same model"
                )
            chunks.setdefault(name, []).append([at, size, part["file"], begin, end, sha256])
    for part in parts:
        for name in set(part.get("left", ())) - chunks.keys():
            raise CheckpointError(
                f"rank {part['rank']} has {name} and left it to another rank, which has none; "
                "give every rank the same model"
            )
    for name, (_, shape) in tensors.items():
        _check_cover(name, shape, chunks[name])
    files = {
        part["file"]: {key: part[key] for key in ("rank", "bytes", "head", "own")} for part in parts
    }
    own = {name: [*form[:2]] for part in parts for name, form in part["own"].items()}
    fields: dict[str, Any] = {
        "format": FORMAT, "step": int(meta["step"]), "time": time.time(), "rank": 0,
        "world": len(parts), "kind": "asked", "good": True, "metrics": {}, **meta,
        "file": INDEX,
        "sha256": hashlib.sha256("".join(part["sha256"] for part in parts).encode()).hexdigest(),
        "bytes": sum(int(part["bytes"]) for part in parts), "holdfast": holdfast.__version__,
        "tensors": {**tensors, **own}, "files": files, "chunks": chunks,
    }  # fmt: skip
    return {**fields, "rank": 0, "world": len(parts)}


def publish(folder: Path, fields: Mapping[str, Any]) -> None:
    """Write the index: from here on the folder is a checkpoint."""
    replace_file(folder / INDEX, encode_record(fields))


def settle(temporary: Path, folder: Path) -> None:
    """Give a complete checkpoint its name; an older one of the same step goes, afterwards.

    Killed at any instant one of the two is found: under its name, or under the second one.
    """
    second = folder.with_name(folder.name + SECOND)
    if folder.exists():
        shutil.rmtree(second, ignore_errors=True)
        folder.rename(second)
    temporary.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(second, ignore_errors=True)


def _check_cover(name: str, shape: Sequence[int], chunks: Sequence[Sequence[Any]]) -> None:
    """See that the chunks lie within the tensor, apart from each other, and make up all of it."""
    places = {tuple(at): tuple(size) for at, size, *_ in chunks}
    inside = all(
        a >= 0 and a + n <= extent
        for at, size in places.items()
        for a, n, extent in zip(at, size, shape, strict=True)
    )
    have = sum(math.prod(size) for size in places.values())
    if len(places) != len(chunks) or not inside or have != math.prod(shape):
        raise CheckpointError(
            f"the ranks hold {have:,} of the {math.prod(shape):,} elements of {name} "
            f"{list(shape)}, in {len(chunks)} chunks; this state cannot be put together again"
        )
