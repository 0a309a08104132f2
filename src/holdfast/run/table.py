"""Table files: one JSON header line, then raw little-endian rows.

The header is padded with spaces to a multiple of 4096 bytes and ends in a newline, so that
numpy and json are enough to read a table anywhere:

    with open(path, "rb") as file:
        header = json.loads(file.readline())
    rows = np.fromfile(path, [tuple(c) for c in header["dtype"]], offset=header["offset"])

(``np.memmap`` takes the same arguments, but refuses a file whose last row is torn.)

A table is a sequence of such files, its segments. Keys of the header beyond those above:
``id`` (of the declaration), ``segment`` to ``last`` (the numbers of the segments this file
stands for), ``start`` and ``span`` (which rows of the table, counted from its beginning;
``span`` is missing while every row is there), ``stride`` (one row in so many is left, 1 for
all), and whatever the declaration said besides.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

import numpy as np

from holdfast.errors import RunFolderError
from holdfast.records.columns import EARLIER
from holdfast.regular_files import open_regular
from holdfast.run import jsonl
from holdfast.run.durable import replace_file

FORMAT = 1
STEPS = "steps"
"""The table of the steps' rows, whose columns are those of ``records.columns``."""
BLOCK = 4096
Rows = np.ndarray[Any, np.dtype[np.void]]

_FORMATS = re.compile(r"<[iu][248]|<f[248]|\|[iu]1")
_HEADER_MAX = 4 * 1024 * 1024
_PIECE = 1 << 20
# Eight times the budget of a table (``writer.BUDGET``) is what one had at most, also while thinned.
_LARGEST = 512 << 20
_EXTENTS = 100_000
_LATEST = 1e11
"""Seconds since 1970 that no clock shows for some thousand years."""
_OWN_KEYS = frozenset(
    ("holdfast", "table", "lane", "dtype", "offset", "id", "segment", "last", "start", "span",
     "stride")
)  # fmt: skip
NO_ROWS: Rows = np.empty(0, [("step", "<i8"), ("time", "<f8")])


@dataclass(frozen=True, slots=True)
class Declaration:
    """What the writer of a table says before its first row: id, name, columns, extras."""

    id: int
    table: str
    dtype: np.dtype[np.void]
    extra: Mapping[str, Any]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Check and take over a declaration or a header; nonsense is a ``ValueError``."""
        number, table, dtype = data.get("id", 16), data.get("table"), data.get("dtype")
        if not isinstance(number, int) or number < 16:
            raise ValueError(f"table id {number!r} is not a number from 16 up")
        if not isinstance(table, str) or not re.fullmatch(r"[a-z][a-z0-9_]{0,31}", table):
            raise ValueError(f"table name {table!r} is not a short lower-case word")
        if not isinstance(dtype, list) or not dtype:
            raise ValueError(f"dtype {dtype!r} is not a list of columns")
        columns: list[tuple[str, str]] = []
        for column in cast("list[Any]", dtype):
            match column:
                case [str(name), str(form)] if name and _FORMATS.fullmatch(form):
                    columns.append((name, form))
                case _:
                    raise ValueError(f"column {column!r} is not [name, little-endian format]")
        if table == STEPS:
            columns = [(EARLIER.get(name, name), form) for name, form in columns]
        if len({name for name, _ in columns}) < len(columns):
            raise ValueError("two columns have the same name")
        if columns[0] != ("step", "<i8"):
            raise ValueError(f"the first column is {columns[0]}, not step as <i8")
        extra = {key: value for key, value in data.items() if key not in _OWN_KEYS}
        return cls(number, table, np.dtype(columns), extra)


class TableBlocks:
    """Rows as they come out of a ring, put together by table, in order.

    ``parts[table]`` is a list of (declaration, rows as bytes); a new entry begins where the
    declaration changes.
    """

    def __init__(self, declared: dict[int, Declaration]) -> None:
        """Begin with the declarations known so far, by id; new ones are added there."""
        self.parts: dict[str, list[tuple[Declaration, list[bytes]]]] = {}
        self._declared = declared

    def declare(self, declaration: Declaration) -> None:
        """From here on rows of this id look like this."""
        self._declared[declaration.id] = declaration
        self.parts.setdefault(declaration.table, []).append((declaration, []))

    def add(self, kind: int, row: bytes) -> bool:
        """Add a row; False if nobody declared it or its length is wrong."""
        declaration = self._declared.get(kind)
        if declaration is None or len(row) != declaration.dtype.itemsize:
            return False
        parts = self.parts.setdefault(declaration.table, [])
        if not parts or parts[-1][0] is not declaration:
            parts.append((declaration, []))
        parts[-1][1].append(row)
        return True


@dataclass(frozen=True, slots=True)
class Segment:
    """One table file as its header describes it; ``rows`` are the complete ones on disk."""

    path: Path
    declaration: Declaration
    lane: str
    number: int
    last: int
    start: int
    span: int
    stride: int
    offset: int
    rows: int

    @property
    def end(self) -> int:
        """Which row of the table follows this segment."""
        return self.start + self.span

    @property
    def size(self) -> int:
        """Bytes up to the last complete row."""
        return self.offset + self.rows * self.declaration.dtype.itemsize


def write_segment(
    path: Path, declaration: Declaration, lane: str, *, number: int, start: int,
    last: int | None = None, span: int | None = None, stride: int = 1, rows: Rows | None = None,
) -> Segment:  # fmt: skip
    """Put a segment at ``path`` in one step, replacing what is there; may raise ``OSError``."""
    last = number if last is None else last
    header: dict[str, Any] = {
        "holdfast": FORMAT,
        "table": declaration.table,
        "lane": lane,
        "dtype": [list(column) for column in declaration.dtype.descr],
        "offset": BLOCK,
        "id": declaration.id,
        "segment": number,
        "last": last,
        "start": start,
        "stride": stride,
        **declaration.extra,
    }
    if span is not None:
        header["span"] = span
    while len(line := jsonl.encode(header)) + 1 > header["offset"]:
        header["offset"] += BLOCK
    offset: int = header["offset"]
    count = 0 if rows is None else len(rows)
    replace_file(path, line.ljust(offset - 1) + b"\n", b"" if rows is None else rows.tobytes())
    whole = count if span is None else span
    return Segment(path, declaration, lane, number, last, start, whole, stride, offset, count)


def read_header(file: BinaryIO, path: Path) -> Segment:
    """Read the header of an open table file; a damaged one is a ``RunFolderError``."""
    line = file.readline(_HEADER_MAX)
    try:
        header = jsonl.decode(line, once=True)
        if header.get("holdfast") != FORMAT:
            raise ValueError(f"its format is {header.get('holdfast')!r}, known is {FORMAT}")
        if header.get("offset") != len(line) or not line.endswith(b"\n"):
            raise ValueError(f"its header ends at byte {len(line)}, not {header.get('offset')!r}")
        declaration = Declaration.from_dict(header)
        number = int(header.get("segment", 0))
        start, stride = int(header.get("start", 0)), int(header.get("stride", 1))
        last = int(header.get("last", number))
        lane = str(header["lane"])
        span = header.get("span")
        rows = (_length(file) - len(line)) // declaration.dtype.itemsize
        rows = _written(file, len(line), declaration.dtype.itemsize, rows)
        whole = rows if span is None else int(span)
        if min(number, last - number, start, whole, stride - 1) < 0:
            raise ValueError("its numbers make no sense")
    except (ValueError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise RunFolderError(
            f"{path.name} is not a table of holdfast ({error}), in {path.parent}; "
            "move the file away to read the rest of the run"
        ) from error
    return Segment(
        path, declaration, lane, number, last, start, whole, stride, len(line), rows
    )  # fmt: skip


def _length(file: BinaryIO) -> int:
    """Bytes up to the end of what was written: a hole at the end of a file is not read."""
    size = os.fstat(file.fileno()).st_size
    with contextlib.suppress(OSError):  # a file system that does not tell
        size = _data_end(file.fileno(), size)
    if size > _LARGEST:
        raise ValueError(f"it has {size:,} bytes, ours have below {_LARGEST >> 20} MiB")
    return size


def _data_end(fd: int, size: int) -> int:
    end = 0
    for _ in range(_EXTENTS if hasattr(os, "SEEK_DATA") else 0):
        try:
            data = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole follows
                return end
            raise
        end = os.lseek(fd, data, os.SEEK_HOLE)
    return size


def _written(file: BinaryIO, offset: int, size: int, rows: int) -> int:
    """How many rows were written: zeros at the end are what a crash of the machine leaves there."""
    step = max(1, _PIECE // size)
    while rows > 1:
        first = max(1, rows - step)
        # Nearly always the last row ends the search.
        file.seek(offset + (rows - 1) * size)
        if any(file.read(size)):
            return rows
        file.seek(offset + first * size)
        filled = np.frombuffer(file.read((rows - first) * size), np.uint8)
        last = np.flatnonzero(filled)[-1:]
        if last.size:
            return first + int(last[0]) // size + 1
        rows = first
    return rows


def read_rows(file: BinaryIO, segment: Segment, first: int = 0, stop: int | None = None) -> Rows:
    """Read complete rows of the file whose header ``segment`` is."""
    dtype = segment.declaration.dtype
    stop = segment.rows if stop is None else min(stop, segment.rows)
    count = max(0, stop - first)
    file.seek(segment.offset + first * dtype.itemsize)
    data = file.read(count * dtype.itemsize)
    # The file may have been cut back since its header was read: whole rows only.
    return _plausible(np.frombuffer(data, dtype, count=len(data) // dtype.itemsize))


def _plausible(rows: Rows) -> Rows:
    """Rows that a writer may have written: each has a step and a time, which foreign bytes lack."""
    if not len(rows) or "time" not in (rows.dtype.names or ()):
        return rows
    made = (rows["step"] >= 0) & (rows["time"] >= 0) & (rows["time"] < _LATEST)
    return rows if made.all() else rows[made]


def load_segment(path: Path) -> tuple[Segment, Rows]:
    """Read a whole segment, header and rows from the same file even if it is replaced."""
    with open_regular(path) as file:
        segment = read_header(file, path)
        return segment, read_rows(file, segment)


def join(blocks: Sequence[Rows]) -> Rows:
    """Put blocks of rows one behind the other, on all their columns; NaN where one is missing."""
    blocks = [block for block in blocks if block.dtype.names]
    if not blocks:
        return NO_ROWS
    if all(block.dtype == blocks[0].dtype for block in blocks):
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    columns: dict[str, np.dtype[Any]] = {}
    for block in blocks:
        for name in block.dtype.names or ():
            form: np.dtype[Any] = block.dtype[name]
            columns[name] = np.promote_types(columns.get(name, form), form)
    out = np.empty(sum(map(len, blocks)), list(columns.items()))
    at = 0
    for block in blocks:
        part = out[at : at + len(block)]
        for name, form in columns.items():
            present = name in (block.dtype.names or ())
            part[name] = block[name] if present else (np.nan if form.kind == "f" else 0)
        at += len(block)
    return out
