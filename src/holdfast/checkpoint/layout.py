"""The safetensors layout: a header in JSON, then the bytes of the tensors, without a gap.

Written and read here, piece by piece, so that a state is hashed while it passes through and
never stands in memory twice. The ``safetensors`` package reads what this writes.

    >>> head = header([StoredTensor("w", "F32", (2, 3), 24)], {"format": "pt"})
    >>> len(head) % 8, head[8:40]
    (0, b'{"__metadata__":{"format":"pt"},')
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from holdfast.run.jsonl import pairs_once

CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
"""What the format calls a dtype. Others travel as plain bytes (``RAW``), named elsewhere."""

RAW = "U8"

# What the safetensors package accepts; a header is names and a skeleton, far below it.
LARGEST_HEADER = 100_000_000


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file: its name, the code of its dtype, its shape and its bytes."""

    name: str
    code: str
    shape: tuple[int, ...]
    bytes: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """The head of a file: free text by key, and the tensors in the order of their bytes."""

    metadata: Mapping[str, str]
    pieces: Sequence[StoredTensor]


def header(pieces: Sequence[StoredTensor], metadata: Mapping[str, str], length: int = 0) -> bytes:
    """The bytes before the data, padded to a multiple of 8 and to ``length`` at least.

    The offsets follow from the order of the pieces; those of wider elements should come
    first, so that every tensor begins at a multiple of its element's size.
    """
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for piece in pieces:
        start, end = end, end + piece.bytes
        offsets = [start, end]
        entries[piece.name] = {
            "dtype": piece.code, "shape": list(piece.shape), "data_offsets": offsets
        }  # fmt: skip
    text = json.dumps(entries, separators=(",", ":")).encode()
    size = max(len(text), length - 8)
    size += -size % 8
    return struct.pack("<Q", size) + text.ljust(size)


def read_header(read: Callable[[int], bytes | bytearray], size: int) -> Header:
    """Read the head of a file of ``size`` bytes; what makes no sense is a ``ValueError``."""
    start = read(8)
    if len(start) < 8:
        raise ValueError("it ends within its first 8 bytes")
    (length,) = struct.unpack("<Q", start)
    if length > min(size - 8, LARGEST_HEADER):
        raise ValueError(f"its header would be {length} bytes long")
    try:
        entries = cast("dict[str, Any]", json.loads(read(length), object_pairs_hook=pairs_once))
        metadata = {str(k): str(v) for k, v in entries.pop("__metadata__", {}).items()}
        pieces = sorted(
            (_piece(name, entry) for name, entry in entries.items()),
            key=lambda piece: (piece.start, piece.bytes),
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("its header makes no sense") from error
    end = 0
    for piece in pieces:
        if piece.start != end or piece.bytes < 0 or min(piece.shape, default=0) < 0:
            raise ValueError(f"the place of {piece.name!r} makes no sense")
        end += piece.bytes
    if 8 + length + end != size:
        raise ValueError(f"it has {size} bytes and should have {8 + length + end}")
    return Header(metadata, pieces)


def _piece(name: str, entry: Any) -> StoredTensor:
    numbers = [*entry["data_offsets"], *entry["shape"]]
    if any(type(one) is not int for one in numbers):
        raise ValueError(f"{name} has an offset or a size that is no whole number")
    (start, stop), shape = entry["data_offsets"], tuple(entry["shape"])
    return StoredTensor(name, str(entry["dtype"]), shape, stop - start, start)
