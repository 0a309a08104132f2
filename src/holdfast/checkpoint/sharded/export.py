"""A checkpoint as one plain file of safetensors, written tensor by tensor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import CheckpointError
from ...run.durable import TEMPORARY
from .. import layout
from ..file import load as load_file
from ..record import data_path, read_record, record_path
from ..stream import put, tensor_bytes, true_dtype
from ..tree import flatten, form, paths
from .storage import FolderReader


def export_tensors(source: Path, target: Path, *, part: str = "") -> int:
    """Write the tensors of a checkpoint of either form into one file; how many these are.

    Of a checkpoint over ranks one tensor is in memory at a time, put together from its chunks,
    each against its checksum.

    Args:
        source: the checkpoint.
        target: the new file, for ``safetensors.torch.load_file``.
        part: only those whose names begin so, with the rest of their names: ``models.model.``.
    """
    temporary = target.with_name(f"{target.name}.{os.getpid()}{TEMPORARY}")
    shapes, tensors = _tensors(source)
    names = [name for name in shapes if name.startswith(part)]
    if not names:
        some = ", ".join(sorted({".".join(name.split(".")[:2]) for name in shapes})[:8])
        raise CheckpointError(f"{source} has no tensors below {part}; it has {some}")
    # Wider elements first: every tensor begins at a multiple of its element's size.
    names.sort(key=lambda name: -true_dtype(shapes[name][0], name).itemsize)
    pieces: list[layout.StoredTensor] = []
    for name in names:
        dtype, shape = shapes[name]
        if dtype not in layout.CODES:
            raise CheckpointError(
                f"{name} is of the dtype {dtype}, for which safetensors has no word; "
                "export to a name that ends in .pt"
            )
        size = torch.Size(shape).numel() * true_dtype(dtype, name).itemsize
        pieces.append(
            layout.StoredTensor(name.removeprefix(part), layout.CODES[dtype], shape, size)
        )
    try:
        with temporary.open("wb", buffering=0) as file:
            put(file, layout.header(pieces, {"format": "pt"}))
            for name in names:
                put(file, tensor_bytes(tensors(name), name))
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise CheckpointError(f"cannot write {target}: {error}; choose another place") from error
    finally:
        temporary.unlink(missing_ok=True)
    return len(names)


def _tensors(source: Path) -> tuple[dict[str, tuple[str, tuple[int, ...]]], Any]:
    """Dtype and shape of every tensor, and what gives one by its name."""
    fields = read_record(source)
    if "files" not in fields:
        skeleton, tensors = flatten(load_file(source)[0])
        held = dict(zip(paths(skeleton), tensors, strict=True))
        return {name: form(tensor) for name, tensor in held.items()}, held.__getitem__
    reader = FolderReader(data_path(record_path(source), fields))
    _, own = reader.own(0)
    shapes = {name: form(tensor) for name, tensor in own.items()}
    for name in reader.fields["chunks"]:
        dtype, shape = reader.fields["tensors"][name]
        shapes[name] = dtype, tuple(shape)

    def tensor(name: str) -> Tensor:
        return own[name] if name in own else _joined(shapes[name], name, reader.chunks(name))

    return shapes, tensor


def _joined(
    shape: tuple[str, tuple[int, ...]], name: str, chunks: Iterator[tuple[tuple[int, ...], Tensor]]
) -> Tensor:
    whole = torch.empty(shape[1], dtype=true_dtype(shape[0], name))
    for at, chunk in chunks:
        place = tuple(slice(a, a + n) for a, n in zip(at, chunk.shape, strict=True))
        whole[place] = chunk
    return whole
