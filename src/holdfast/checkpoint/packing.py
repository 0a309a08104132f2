"""Compression of tensors without loss: bytes of equal meaning together, then zlib.

The exponents of weights are much alike, their mantissas are noise. So the first bytes of all
elements go together, then the second ones, and so on; a plane that does not shrink is stored as
it is, which costs next to no time. Random fp32 values shrink to about 85 %, bf16 to about 70 %.

    >>> data = bytes(range(256)) * 64
    >>> bytes(unpack(b"".join(pack(data, 4)), 4, len(data))) == data
    True
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np

Buffer = bytes | bytearray | memoryview

# A part is turned round in memory, so it is bounded.
_PART = 4 << 20
# A plane is compressed when this much of its beginning shrinks by a tenth or more.
_SAMPLE = 16 << 10
SHRUNK = 1032
"""Bytes that one byte of zlib can stand for at most."""
_LEVEL = 1  # higher ones take twice the time for a percent on weights


def pack(data: Buffer, width: int) -> Iterator[bytes]:
    """The packed form of an array of elements of ``width`` bytes, in pieces."""
    view = memoryview(data)
    part = _PART // width * width
    for start in range(0, len(view), part):
        elements = np.frombuffer(view[start : start + part], np.uint8).reshape(-1, width)
        for plane in np.ascontiguousarray(elements.T):
            sample = plane[:_SAMPLE].tobytes()
            shrinks = len(zlib.compress(sample, _LEVEL)) < 0.9 * len(sample)
            packed = zlib.compress(memoryview(plane), _LEVEL if shrinks else 0)
            yield struct.pack("<I", len(packed)) + packed


def unpack(packed: Buffer, width: int, size: int) -> bytearray:
    """The ``size`` bytes that were packed; a ``ValueError`` if these are not they."""
    view, at = memoryview(packed), 0
    whole = bytearray(size)
    part = _PART // width * width
    try:
        for start in range(0, size, part):
            elements = np.frombuffer(memoryview(whole)[start : start + part], np.uint8)
            elements = elements.reshape(-1, width)
            for plane in range(width):
                (length,) = struct.unpack_from("<I", view, at)
                # No more than fits: so little text can mean gigabytes.
                packed_plane, room = view[at + 4 : at + 4 + length], len(elements) + 1
                data = zlib.decompressobj().decompress(packed_plane, room)
                elements[:, plane] = np.frombuffer(data, np.uint8)
                at += 4 + length
    except (zlib.error, struct.error) as error:
        raise ValueError(f"what was packed cannot be unpacked: {error}") from error
    if at != len(view):
        raise ValueError(f"{len(view) - at} bytes are left over after unpacking")
    return whole
