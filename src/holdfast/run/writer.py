"""Drains a lane's ring into its files, off the training thread.

How large a lane grows, whatever the number of steps (defaults in brackets):

- Per table: sealed segments at most ``budget_bytes`` (64 MiB), plus the open segment of
  at most ``segment_rows`` (65 536) rows and a quarter of the budget, plus, while thinning, one
  temporary file of at most 5/4 of a segment. A step is 8 + 8 + 36 x 4 = 160 bytes, a segment
  of steps 65 536 x 160 + 4096 bytes = 10 MiB. So the steps of a lane stay below 64 + 10 =
  74 MiB (86.5 MiB for moments). That is room for 485 000 rows: nearly half a million steps are
  kept whole, of a million every second or fourth, and so on, rows around incidents first.
- Rows handed to one ``take`` come on top until the next; from a ring that is at most its
  capacity (8 MiB).
- ``events``, ``batches`` and ``quarantine``: ``stream_lines`` (20 000) lines each; what comes
  after is counted in an event of kind ``truncated``, written each time the count doubles and
  at the end (64 lines at the very most). ``findings`` are never left out.

The ring and the files agree at any instant by the rule in ``mark``: with the ring given,
no row is lost or doubled by a kill of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from holdfast.errors import RunFolderError
from holdfast.records.base import event_from
from holdfast.records.run import Truncated
from holdfast.redaction import hide_known_in
from holdfast.run import jsonl
from holdfast.run.folder import Run, rank_of
from holdfast.run.kinds import (
    BATCH,
    DECLARATION,
    EVENT,
    FIRST_ROW,
)
from holdfast.run.mark import Mark
from holdfast.run.ring import NOTE_MAX, Record, Ring
from holdfast.run.segments import SegmentedTable
from holdfast.run.streams import Stream
from holdfast.run.table import (
    Declaration,
    Rows,
    TableBlocks,
    join,
)
from holdfast.types import Event, Finding

BUDGET = 64 * 1024 * 1024
SEGMENT_ROWS = 65_536
STREAM_LINES = 20_000
PENDING_MAX = 32 * 1024 * 1024
"""What one file may owe while its disk is full, without a ring to hold it."""

# What copying or encoding says of evidence that JSON cannot hold: a plugin's detector may
# put anything there, and its finding must not be lost for that, nor end the writer.
_UNWRITABLE = (TypeError, ValueError, RecursionError)

_Sink = TypeVar("_Sink", SegmentedTable, Stream, SegmentedTable | Stream)

# Events of these kinds name a bad sample; all of them stand in a file of their own too.
QUARANTINE = "quarantine"
_SAMPLES = (QUARANTINE, "unreadable")


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """What one drain brought, for those who judge it while the run goes on.

    ``rows`` are the steps, None if there were none; ``tables`` holds the other tables.
    """

    rows: Rows | None = None
    tables: dict[str, Rows] = field(default_factory=dict[str, Rows])
    events: list[Event] = field(default_factory=list[Event])
    batches: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


class LaneWriter:
    """Appends what training recorded to the files of one lane; fails by counting.

    >>> import tempfile
    >>> run = Run.create(tempfile.mkdtemp(), {})
    >>> writer = LaneWriter(run, "r0")
    >>> declared = {"id": 16, "table": "steps", "dtype": [["step", "<i8"], ["loss", "<f4"]]}
    >>> row = np.array([(7, 0.5)], [("step", "<i8"), ("loss", "<f4")]).tobytes()
    >>> writer.take([(DECLARATION, jsonl.encode(declared)), (16, row)]).rows
    array([(7, 0.5)], dtype=[('step', '<i8'), ('loss', '<f4')])
    >>> writer.close()
    True

    No failure of the disk leaves ``take``: it is counted in ``errors``, its message kept in
    ``last_error``, and the append is tried again the next time, from the row it stopped at.
    """

    def __init__(
        self, run: Run, lane: str, budget_bytes: int = BUDGET, *, ring: Ring | None = None,
        segment_rows: int = SEGMENT_ROWS, stream_lines: int = STREAM_LINES,
    ) -> None:  # fmt: skip
        """Go on where the files end, cut back to what the ring's note marks."""
        self.errors = 0
        """Failed writes; what they were for is tried again."""
        self.last_error = ""
        self.corrupt = 0
        """Records of the ring that made no sense and were left out."""
        self.lost = 0
        """Records given up because the disk stayed full for too long."""
        self._run, self._lane, self._ring = run, lane, ring
        self._budget, self._segment_rows = budget_bytes, segment_rows
        mark = None if ring is None else Mark.decode(ring.note)
        streams = None if mark is None else mark.streams
        self._streams = {
            name: Stream(
                run.stream_path(name, lane), stream_lines,
                None if streams is None else streams.get(name, 0),
            )
            for name in ("events", "batches", QUARANTINE)
        }  # fmt: skip
        self._findings = Stream(run.stream_path("findings", lane), None)
        self._reported = dict.fromkeys(self._streams, 0)
        self._tables: dict[str, SegmentedTable] = {}
        self._declared: dict[int, Declaration] = {}
        for name in run.tables(lane):
            place = None if mark is None else mark.tables.get(name, (-1, 0))
            self._declared |= self._table(name, place).declarations
        self._restore_left_out()
        self._commit()

    @property
    def pending(self) -> bool:
        """Whether something taken is not in the files yet, because a write failed."""
        return any(sink.pending for sink in self._sinks())

    def drain(self) -> Taken:
        """Take everything new from the ring."""
        if self._ring is None:
            raise ValueError("this LaneWriter was made without a ring; use take(records)")
        return self.take(self._ring.fetch())

    def take(self, records: Iterable[Record]) -> Taken:
        """Append records of a ring to the files and say what they were."""
        if not self.pending:
            # Before anything is appended: now all that is in the files is marked.
            self._each(self._tables.values(), SegmentedTable.thin)
        events: list[Event] = []
        batches: list[dict[str, Any]] = []
        blocks = TableBlocks(self._declared)
        for kind, payload in records:
            if kind >= FIRST_ROW:
                self.corrupt += not blocks.add(kind, payload)
                continue
            try:
                data = jsonl.decode(payload)
                if kind == EVENT:
                    event = Event.from_dict(data)
                    events.append(event)
                    self._push(self._streams["events"], data)
                    if event.kind in _SAMPLES:
                        sample = {"step": event.step, "time": event.time, **event.data}
                        self._push(self._streams[QUARANTINE], sample)
                elif kind == BATCH:
                    batches.append(data)
                    self._push(self._streams["batches"], data)
                elif kind == DECLARATION:
                    declaration = Declaration.from_dict(data)
                    self._make_room(declaration.table)
                    blocks.declare(declaration)
                else:
                    self.corrupt += 1
            except (ValueError, TypeError):
                self.corrupt += 1
            except (OSError, RunFolderError) as error:
                self._failed(error)
        rows = {name: self._push_rows(name, parts) for name, parts in blocks.parts.items()}
        rows = {name: array for name, array in rows.items() if len(array)}
        self._report_left_out(doubled=True)
        self._write()
        return Taken(rows.pop("steps", None), rows, events, batches)

    def write_events(self, events: Sequence[Event]) -> None:
        """Append events that did not come through the ring: those of the watching process."""
        for event in events:
            try:
                self._push(self._streams["events"], hide_known_in(event.to_dict()))
            except _UNWRITABLE as error:
                self._failed(error)
                bare = replace(event, data={"unwritable": type(error).__name__})
                self._push(self._streams["events"], bare.to_dict())
        self._write()

    def write_findings(self, findings: Sequence[Finding]) -> None:
        """Append findings; of several with the same code, step and rank the last one counts."""
        for finding in findings:
            try:
                self._findings.push(hide_known_in(finding.to_dict()))
            except _UNWRITABLE as error:
                self._failed(error)
                bare = replace(finding, evidence={"unwritable": type(error).__name__})
                self._findings.push(bare.to_dict())
        self._write()

    def flush(self) -> None:
        """Append what an earlier failure held back, and wait until the disk has it all."""
        self._write()
        self._each(self._sinks(), lambda sink: sink.sync())

    def close(self) -> bool:
        """Write what is left, sync and let go; True when everything is in the files."""
        self._report_left_out(doubled=False)
        self._write()
        if not self.pending:
            self._each(self._tables.values(), lambda table: table.thin(again=True))
        self.flush()
        for sink in self._sinks():
            sink.close()
        return not self.pending

    def _sinks(self) -> list[SegmentedTable | Stream]:
        return [*self._tables.values(), *self._streams.values(), self._findings]

    def _write(self) -> None:
        self._each(self._sinks(), lambda sink: sink.write())
        self._commit()

    def _commit(self) -> None:
        if self._ring is None or self.pending:
            return
        tables = {name: table.mark for name, table in self._tables.items()}
        streams = {name: stream.size for name, stream in self._streams.items()}
        self._ring.commit(Mark(tables, streams).encode())

    def _each(self, sinks: Iterable[_Sink], do: Callable[[_Sink], None]) -> None:
        for sink in sinks:
            try:
                do(sink)
            except (OSError, RunFolderError) as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.errors += 1
        self.last_error = str(error)

    def _table(self, name: str, mark: tuple[int, int] | None = None) -> SegmentedTable:
        if name not in self._tables:
            self._tables[name] = SegmentedTable(
                self._run, self._lane, name,
                budget=self._budget, segment_rows=self._segment_rows, mark=mark,
            )  # fmt: skip
        return self._tables[name]

    def _make_room(self, name: str) -> None:
        # The ring's note must be able to mark all tables: some 180 of them.
        if sum(len(known) + 24 for known in {*self._tables, name}) > NOTE_MAX - 128:
            raise ValueError(f"table {name} would be one too many")
        self._table(name)

    def _push(self, stream: Stream, data: dict[str, Any]) -> None:
        if stream.pending_bytes > PENDING_MAX:
            self.lost += 1
        else:
            stream.push(data)

    def _push_rows(self, name: str, parts: Sequence[tuple[Declaration, list[bytes]]]) -> Rows:
        table = self._tables[name]
        arrays: list[Rows] = []
        for declaration, payloads in parts:
            data = b"".join(payloads)
            arrays.append(np.frombuffer(data, declaration.dtype))
            if table.pending_bytes > PENDING_MAX:
                self.lost += len(payloads)
            else:
                table.push(declaration, data)
        return join(arrays)

    def _report_left_out(self, *, doubled: bool) -> None:
        for name, stream in self._streams.items():
            reported = self._reported[name]
            if stream.left_out <= reported or (doubled and stream.left_out < 2 * reported):
                continue
            self._reported[name] = stream.left_out
            record = Truncated(stream=name, left_out=stream.left_out)
            event = event_from(-1, record, rank_of(self._lane))
            self._streams["events"].push(event.to_dict(), always=True)

    def _restore_left_out(self) -> None:
        if not any(stream.full for stream in self._streams.values()):
            return
        events = self._streams["events"]
        for line in jsonl.read_lines(events.path, stop=events.size).objects:
            match line:
                case {"kind": "truncated", "data": {"stream": str(name), "left_out": int(count)}}:
                    if name in self._streams:
                        self._streams[name].left_out = self._reported[name] = count
                case _:
                    pass
