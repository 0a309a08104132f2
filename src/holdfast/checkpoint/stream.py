"""The data file of a checkpoint: tensors as bytes, written and read in one pass.

A state is hashed while it passes and never stands in memory twice, and what is read is exactly
what was hashed. A dtype that safetensors has no word for travels as plain bytes, with its true
name beside the skeleton.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from holdfast.checkpoint import layout, packing
from holdfast.checkpoint.record import digest
from holdfast.checkpoint.tree import form, paths, unflatten
from holdfast.errors import CheckpointError

KEY = "holdfast"
"""Of the file's metadata: the skeleton, and the true dtypes of raw tensors."""

_CHUNK = 8 << 20
_WORTH_PACKING = 4096  # bytes; smaller tensors gain nothing
_DTYPES = {code: dtype for dtype, code in layout.CODES.items()}


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor on its way into a file; ``width`` is the size of an element."""

    piece: layout.StoredTensor
    tensor: Tensor
    width: int
    raw: bool
    pack: bool


@dataclass(frozen=True, slots=True)
class Content:
    """A data file in memory: its SHA-256, its metadata, and the bytes of each tensor."""

    sha256: str
    metadata: Mapping[str, str]
    buffers: Mapping[str, tuple[layout.StoredTensor, bytearray]]

    def tree(self, device: str | torch.device) -> Any:
        """The state; its tensors are of memory of their own."""
        if KEY not in self.metadata:
            raise CheckpointError(
                "these tensors were not written by holdfast, in a file of safetensors; "
                "read it with safetensors.torch.load_file"
            )
        structure = json.loads(self.metadata[KEY])
        skeleton, raw = structure["skeleton"], structure["raw"]
        names = paths(skeleton)
        tensors = [_tensor(*self.buffers[name], raw.get(name)).to(device) for name in names]
        return unflatten(skeleton, tensors)


def write(file: Any, skeleton: Any, tensors: Sequence[Tensor], *, compress: bool) -> str:
    """Write a state into an empty file, open for reading too; return the file's SHA-256."""
    parts, metadata = _plan(skeleton, tensors, compress)
    if not any(part.pack for part in parts):
        hashing = hashlib.sha256()
        put(file, layout.header([part.piece for part in parts], metadata), hashing)
        for part in parts:
            put(file, tensor_bytes(part.tensor, part.piece.name), hashing)
        return hashing.hexdigest()
    # How long a packed tensor is shows only afterwards: room for the header is left before it.
    bound = 2 * sum(part.piece.bytes for part in parts) + (1 << 20)
    widest = [replace(part.piece, bytes=bound, shape=(bound,)) for part in parts]
    room = len(layout.header(widest, metadata))
    file.seek(room)
    pieces: list[layout.StoredTensor] = []
    for part in parts:
        begin = file.tell()
        data = tensor_bytes(part.tensor, part.piece.name)
        for blob in packing.pack(data, part.width) if part.pack else [data]:
            put(file, blob)
        size = file.tell() - begin
        pieces.append(replace(part.piece, bytes=size, shape=(size,)) if part.raw else part.piece)
    file.seek(0)
    put(file, layout.header(pieces, metadata, room))
    file.seek(0)
    return digest(file)


def read(file: Any, size: int) -> Content:
    """Read a whole data file; a head that makes no sense is a ``ValueError``."""
    reader = _Reader(file)
    head = layout.read_header(reader.read, size)
    buffers = {piece.name: (piece, reader.read(piece.bytes)) for piece in head.pieces}
    return Content(reader.hashing.hexdigest(), head.metadata, buffers)


class _Reader:
    """Reads a file from its beginning, hashing what passes."""

    def __init__(self, file: Any) -> None:
        self.hashing = hashlib.sha256()
        self._file = file

    def read(self, count: int) -> bytearray:
        """The next bytes; zeros where the file has ended, which the digest will show."""
        buffer = bytearray(count)
        view = memoryview(buffer)
        for start in range(0, count, _CHUNK):
            got = self._file.readinto(view[start : start + _CHUNK])
            self.hashing.update(view[start : start + got])
        return buffer


def _plan(
    skeleton: Any, tensors: Sequence[Tensor], compress: bool
) -> tuple[list[_Part], dict[str, str]]:
    """The tensors in the order of the file, and its metadata."""
    parts: list[_Part] = []
    for name, tensor in zip(paths(skeleton), tensors, strict=True):
        dtype, shape = form(tensor)
        width, size = tensor.element_size(), tensor.numel() * tensor.element_size()
        pack = compress and size >= _WORTH_PACKING
        raw = pack or dtype not in layout.CODES
        code = layout.RAW if raw else layout.CODES[dtype]
        piece = layout.StoredTensor(name, code, (size,) if raw else shape, size)
        parts.append(_Part(piece, tensor, width, raw, pack))
    parts.sort(key=lambda part: 0 if part.raw else -part.width)
    raw = {part.piece.name: [*form(part.tensor), part.pack] for part in parts if part.raw}
    text = json.dumps({"skeleton": skeleton, "raw": raw}, separators=(",", ":"))
    if len(text) > layout.LARGEST_HEADER // 2:
        raise CheckpointError(
            f"the state has {len(text):,} bytes outside of its tensors, which is too much for "
            "the head of a file; give large numpy arrays as tensors"
        )
    return parts, {"format": "pt", KEY: text}


def put(file: Any, data: Any, hashing: Any = None) -> None:
    """Write all of it, and hash what passes."""
    view = memoryview(data)
    for start in range(0, len(view), _CHUNK):
        chunk = view[start : start + _CHUNK]
        if hashing is not None:
            hashing.update(chunk)
        while chunk:  # a disk that fills up writes a part first and says so on the next call
            chunk = chunk[file.write(chunk) :]


def tensor_bytes(tensor: Tensor, name: str) -> memoryview:
    """The elements of a tensor in memory, as bytes; copied only where they lie elsewhere."""
    try:
        dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        dense = torch.view_as_real(dense) if dense.is_complex() else dense
        return memoryview(cast("Any", dense.reshape(-1).view(torch.uint8).numpy()))
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise CheckpointError(
            f"a {type(tensor).__name__} of layout {tensor.layout} on {tensor.device} cannot be "
            f"saved, in the state at {name}; give a dense tensor"
        ) from error


def _tensor(piece: layout.StoredTensor, data: bytearray, raw: Any) -> Tensor:
    """A tensor in memory of its own."""
    dtype, shape = (_DTYPES[piece.code], piece.shape) if raw is None else raw[:2]
    if raw is not None and raw[2]:
        width = true_dtype(dtype, piece.name).itemsize
        size = math.prod(shape) * width
        if size > packing.SHRUNK * len(data):
            raise ValueError(f"{piece.name} would have {size:,} bytes")
        data = packing.unpack(data, width, size)
    return tensor_from(data, dtype, shape, piece.name)


def tensor_from(data: bytearray, dtype: str, shape: Sequence[int], name: str) -> Tensor:
    """A tensor over these bytes."""
    true = true_dtype(dtype, name)
    if math.prod(shape) * true.itemsize != len(data):
        raise ValueError(f"{name} of shape {list(shape)} has {len(data):,} bytes")
    return (
        torch.frombuffer(data, dtype=true).reshape(shape)
        if data
        else torch.empty(shape, dtype=true)
    )


def true_dtype(dtype: str, name: str) -> torch.dtype:
    """The dtype of that name; a ``CheckpointError`` where this torch has none."""
    true = getattr(torch, dtype, None)
    if not isinstance(true, torch.dtype):
        raise CheckpointError(
            f"{name} is of the dtype {dtype}, which torch {torch.__version__} does not have; "
            "load it with the version in the record of the checkpoint"
        )
    return true
