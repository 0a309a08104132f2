"""The writing end of one table of one lane: segments, sealing and thinning.

Rows go to the open segment. It is sealed when it is full or the columns change, and a new
one is opened. Sealed segments are thinned, oldest and finest first, to stay in the budget.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque

from holdfast.regular_files import open_regular
from holdfast.run import thinning
from holdfast.run.durable import Appender
from holdfast.run.folder import Run
from holdfast.run.table import (
    Declaration,
    Segment,
    join,
    load_segment,
    read_header,
    write_segment,
)


class SegmentedTable:
    """Takes rows with ``push``, writes them with ``write``, shrinks old ones with ``thin``.

    ``push`` only remembers; ``write`` may raise ``OSError`` and then still has every row it
    could not write, in order.
    """

    def __init__(
        self, run: Run, lane: str, name: str, *,
        budget: int, segment_rows: int, mark: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        """Go on behind the rows on disk; those beyond ``mark`` (segment, rows) are cut off."""
        self.name = name
        self.pending_bytes = 0
        self._run, self._lane = run, lane
        self._budget, self._segment_rows = budget, segment_rows
        self._pending: deque[tuple[Declaration, bytearray]] = deque()
        self._sealed: list[Segment] = []
        self._open: Segment | None = None
        self._rows = 0
        self._file: Appender | None = None
        self._thin_due = self._thin_failed = False
        self.declarations: dict[int, Declaration] = {}
        """By id, as the headers on disk say: a new reader of the ring missed the originals."""
        self._recover(mark)

    @property
    def pending(self) -> bool:
        """Whether something pushed is not in the files yet."""
        return bool(self._pending)

    @property
    def mark(self) -> tuple[int, int]:
        """(segment, rows in it) up to which the files are good now."""
        if self._open is not None:
            return self._open.number, self._rows
        if self._sealed:
            return self._sealed[-1].last, self._sealed[-1].rows
        return -1, 0

    def push(self, declaration: Declaration, data: bytes) -> None:
        """Remember whole rows (or none: then the declaration alone is put on disk)."""
        if self._pending and self._pending[-1][0] == declaration:
            self._pending[-1][1].extend(data)
        else:
            self._pending.append((declaration, bytearray(data)))
        self.pending_bytes += len(data)

    def write(self) -> None:
        """Append what was pushed, one write per segment."""
        while self._pending:
            declaration, data = self._pending[0]
            opened, file = self._segment_for(declaration)
            itemsize = declaration.dtype.itemsize
            limit = self._limit(declaration)
            part = bytes(data[: (limit - self._rows) * itemsize])
            if part:
                file.append(part)
            self._rows += len(part) // itemsize
            self.pending_bytes -= len(part)
            del data[: len(part)]
            if not data:
                self._pending.popleft()
            if self._rows >= limit:
                self._seal(opened)

    def thin(self, *, again: bool = False) -> None:
        """Bring the sealed segments into the budget; ``again`` even if that failed before."""
        if not self._thin_due or (self._thin_failed and not again):
            return
        self._thin_failed = True  # taken back at the end; until then no call tries anew
        # The newest sealed segment is left alone: it gives those who follow the run time to
        # read every row, and the mark may name it (see LaneReader: a thinned segment that a
        # mark names tells that the mark is old). It is a quarter of the budget at most.
        while len(self._sealed) > 1 and self._sealed_bytes() > self._budget:
            chosen = thinning.choose(self._sealed[:-1])
            if not chosen:
                # Only one-row segments are left, each with a header larger than its row.
                self._sealed[0].path.unlink(missing_ok=True)
                del self._sealed[0]
                continue
            first, last = chosen[0], chosen[-1]
            rows = join([load_segment(segment.path)[1] for segment in chosen])
            merged = write_segment(
                first.path, first.declaration, self._lane, number=first.number, last=last.last,
                start=first.start, span=last.end - first.start, stride=first.stride * 2,
                rows=rows[thinning.kept_rows(rows)],
            )  # fmt: skip
            at = self._sealed.index(first)
            self._sealed[at : at + len(chosen)] = [merged]
            if last is not first:
                # From the rename on the merged header covers this number, so a kill right
                # here leaves a file that everyone passes over.
                last.path.unlink(missing_ok=True)
        self._thin_due = self._thin_failed = False

    def sync(self) -> None:
        """Wait until the disk has what was written."""
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Let go of the open segment; it can be gone on with later."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _sealed_bytes(self) -> int:
        return sum(segment.size for segment in self._sealed)

    def _limit(self, declaration: Declaration) -> int:
        """Rows of a full segment: wide rows make shorter ones, or the newest would be huge."""
        return min(self._segment_rows, max(1, self._budget // 4 // declaration.dtype.itemsize))

    def _recover(self, mark: tuple[int, int] | None) -> None:
        covered = -1
        for path in self._run.table_paths(self.name, self._lane):
            with open_regular(path) as file:
                segment = read_header(file, path)
            if segment.number <= covered or (mark is not None and segment.number > mark[0]):
                path.unlink()
                continue
            covered = segment.last
            self.declarations[segment.declaration.id] = segment.declaration
            self._sealed.append(segment)
        if not self._sealed:
            return
        last = self._sealed[-1]
        marked = mark is not None and last.number == mark[0]
        rows = min(last.rows, mark[1]) if mark is not None and marked else last.rows
        if last.stride == 1 and rows < self._limit(last.declaration):
            del self._sealed[-1]
            self._open, self._rows = last, rows
            # Cut now, not with the first append: a change of columns may seal it before.
            os.truncate(last.path, last.offset + rows * last.declaration.dtype.itemsize)

    def _segment_for(self, declaration: Declaration) -> tuple[Segment, Appender]:
        if self._open is not None and self._open.declaration != declaration:
            self._seal(self._open)
        if self._open is None:
            before = self._sealed[-1] if self._sealed else None
            number = 0 if before is None else before.last + 1
            self._open = write_segment(
                self._run.segment_path(self.name, self._lane, number), declaration, self._lane,
                number=number, start=0 if before is None else before.end,
            )  # fmt: skip
            self._rows = 0
        if self._file is None:
            itemsize = declaration.dtype.itemsize
            keep = self._open.offset + self._rows * itemsize
            self._file = Appender(self._open.path, keep)
        return self._open, self._file

    def _seal(self, segment: Segment) -> None:
        if self._file is not None:
            # Failing to sync loses nothing unless the power fails too; try, and go on.
            with contextlib.suppress(OSError):
                self._file.sync()
        self.close()
        self._open = None
        self._sealed.append(
            Segment(
                segment.path, segment.declaration, segment.lane, segment.number, segment.last,
                segment.start, self._rows, 1, segment.offset, self._rows,
            )
        )  # fmt: skip
        self._rows = 0
        self._thin_due, self._thin_failed = True, False
