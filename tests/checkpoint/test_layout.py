from __future__ import annotations

import io
import json
import struct

import pytest

from holdfast.checkpoint.layout import StoredTensor, header, read_header

PIECES = [StoredTensor("b", "F64", (2,), 16), StoredTensor("a", "U8", (3,), 3)]


def test_a_head_is_read_as_it_was_written():
    data = header(PIECES, {"k": "v"}) + bytes(19)
    head = read_header(io.BytesIO(data).read, len(data))
    assert head.metadata == {"k": "v"}
    assert [(p.name, p.code, p.shape, p.start, p.bytes) for p in head.pieces] == [
        ("b", "F64", (2,), 0, 16),
        ("a", "U8", (3,), 16, 3),
    ]


def test_a_head_can_be_padded():
    assert len(header(PIECES, {}, 1000)) == 1000
    assert len(header(PIECES, {}, 999)) % 8 == 0


def made(entries: object) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234567",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 2) + b"{",
        struct.pack("<Q", 2) + b"[]",
        made([1]),
        made({"a": 3}),
        made({"a": {"dtype": "U8", "shape": [1]}}),
        made({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0]}}),
        made({"a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}) + b"xx",
        made({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, -1]}}),
        made({"a": {"dtype": "U8", "shape": [-1], "data_offsets": [0, 1]}}) + b"x",
        made({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}),
        made({"__metadata__": 3}),
        header(PIECES, {}) + bytes(20),
    ],
)
def test_a_head_that_makes_no_sense_is_refused(data):
    with pytest.raises(ValueError):
        read_header(io.BytesIO(data).read, len(data))
