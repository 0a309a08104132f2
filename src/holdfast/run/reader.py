"""Reading a run: columns as numpy arrays, events and findings, while it runs or after.

A run can be read at any time, by anyone who may read the folder, also after ``kill -9`` of
everybody: files up to the marked lengths plus what is still in the ring (see ``mark``).
A torn last row or line is passed over; a file that makes no sense is a ``RunFolderError``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, TypeVar

import numpy as np

from holdfast.errors import RunFolderError
from holdfast.regular_files import open_regular, remedy
from holdfast.run import jsonl
from holdfast.run.checked import batch_of, event_of, finding_of
from holdfast.run.folder import Run, rank_of
from holdfast.run.kinds import (
    BATCH,
    DECLARATION,
    EVENT,
    FIRST_ROW,
)
from holdfast.run.loud_kinds import chosen
from holdfast.run.mark import Mark
from holdfast.run.ring import Record, Ring
from holdfast.run.table import (
    NO_ROWS,
    Declaration,
    Rows,
    Segment,
    TableBlocks,
    join,
    read_header,
    read_rows,
)
from holdfast.run.thinning import read_within
from holdfast.types import Event, Finding

_TRIES = 20
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LaneData:
    """What a lane recorded, in the order it was written.

    ``tables`` are those besides the steps; ``corrupt`` counts lines that were passed over,
    ``unread`` events of loud kinds (``loud_kinds``).
    """

    lane: str
    rank: int
    steps: Rows
    tables: dict[str, Rows]
    events: list[Event]
    findings: list[Finding]
    batches: list[dict[str, Any]]
    corrupt: int = 0
    unread: int = 0

    @property
    def empty(self) -> bool:
        """Whether there is nothing in it."""
        rows = len(self.steps) + sum(map(len, self.tables.values()))
        return not (rows or self.events or self.findings or self.batches)


@dataclass(slots=True)
class _Place:
    """How far a reader has come in one table: the next row, the step of the last one."""

    row: int = 0
    step: int = -1


@dataclass(frozen=True, slots=True)
class _Position:
    """How far a reader has come in a lane: places in tables, bytes in streams."""

    tables: dict[str, _Place] = field(default_factory=dict[str, _Place])
    streams: dict[str, int] = field(default_factory=dict[str, int])

    def copy(self) -> _Position:
        return _Position({k: replace(v) for k, v in self.tables.items()}, dict(self.streams))


@dataclass(frozen=True, slots=True)
class _Undrained:
    """The lane's ring at one instant; nothing at all once it is gone."""

    mark: Mark | None = None
    records: Sequence[Record] = ()


class _MovedError(Exception):
    """Segments were thinned under our hands; look again."""


class LaneReader:
    """Reads one lane; every call reads anew, so a live run gives more the next time.

    >>> import tempfile
    >>> from holdfast.run.writer import LaneWriter
    >>> run = Run.create(tempfile.mkdtemp(), {})
    >>> LaneWriter(run, "r0").write_events([Event(time=0.5, rank=0, step=3, kind="start")])
    >>> LaneReader(run, "r0").events()[0].kind
    'start'
    """

    def __init__(self, run: Run, lane: str) -> None:
        """Look at a lane of ``run``; ``RunFolderError`` if it has no such lane."""
        if lane not in run.lanes():
            raise RunFolderError(
                f"lane {lane!r} is not among {run.lanes()}, in {run.path}; choose one of those"
            )
        self.run, self.lane = run, lane

    def steps(self) -> Rows:
        """The steps, thinned where the run was long; NaN where a column was not recorded."""
        return self.table("steps")

    def table(self, name: str) -> Rows:
        """All rows of a table, drained or not; none if the lane has no such table."""
        return self._steadily(lambda ring: self._rows(name, ring, _Place()))

    def events(self) -> list[Event]:
        """All that happened, in the order it was written."""
        return self._steadily(lambda ring: self._collect(ring, (), _Position())).events

    def findings(self) -> list[Finding]:
        """What was found: one for each code, optimizer, layer and rank, as last written."""
        return self.read(tables=()).findings

    def batches(self) -> list[dict[str, Any]]:
        """The batches around incidents."""
        return self.read(tables=()).batches

    def read(self, tables: Iterable[str] | None = None) -> LaneData:
        """Everything as of one instant; ``tables`` names those wanted if not all are.

        Of kinds with very many events the first and the last, the others are ``unread``.
        """
        names = None if tables is None else list(tables)
        return self._steadily(lambda ring: self._collect(ring, names, _Position(), few=True))

    def tail(self) -> Tail:
        """Follow the lane, from its beginning on."""
        return Tail(self)

    def _steadily(self, read: Callable[[_Undrained], _T]) -> _T:
        for attempt in range(_TRIES):
            try:
                return read(self._undrained())
            except (_MovedError, FileNotFoundError):
                # Thinning takes a segment away while we look at it; it is rare and quick.
                time.sleep(0.005 * attempt)
            except OSError as error:
                raise RunFolderError(
                    f"cannot read {error.filename}: {error.strerror}, in {self.run.path}; "
                    f"{remedy(error)}"
                ) from error
        raise RunFolderError(
            f"the files of lane {self.lane} changed {_TRIES} times while being read, in "
            f"{self.run.path}; try again"
        )

    def _undrained(self) -> _Undrained:
        path = self.run.ring_path(self.lane)
        # An empty file is a lane that was claimed and has no ring yet.
        if not path.exists() or path.stat().st_size == 0:
            return _Undrained()
        try:
            ring = Ring.attach(path, readonly=True)
        except RunFolderError:
            if path.exists():
                raise
            return _Undrained()
        try:
            note, records = ring.snapshot()
            return _Undrained(Mark.decode(note), records)
        finally:
            ring.detach()

    def _collect(
        self, ring: _Undrained, tables: Sequence[str] | None, at: _Position, *, few: bool = False
    ) -> LaneData:
        """Read on from ``at``, which moves along."""
        found: dict[str, Rows] = {}
        for name in self._tables(ring) if tables is None else tables:
            found[name] = self._rows(name, ring, at.tables.setdefault(name, _Place()))
        streams = {"events": EVENT, "findings": None, "batches": BATCH}
        lines = {
            name: self._lines(name, kind, ring, at, few=few and name == "events")
            for name, kind in streams.items()
        }
        events, bad_events = _parsed(lines["events"].objects, event_of)
        findings, bad_findings = _parsed(lines["findings"].objects, finding_of)
        batches, bad_batches = _parsed(lines["batches"].objects, batch_of)
        return LaneData(
            lane=self.lane,
            rank=rank_of(self.lane),
            steps=found.pop("steps", NO_ROWS),
            tables=found,
            events=events,
            findings=list({(f.rank, f.key): f for f in findings}.values()),
            batches=batches,
            corrupt=sum(each.corrupt for each in lines.values())
            + bad_events
            + bad_findings
            + bad_batches,
            unread=lines["events"].unread,
        )

    def _tables(self, ring: _Undrained) -> list[str]:
        return sorted({*_undrained_rows(ring.records, {}), *self.run.tables(self.lane)})

    def _rows(self, name: str, ring: _Undrained, place: _Place) -> Rows:
        blocks: list[Rows] = []
        declared: dict[int, Declaration] = {}
        marked, marked_rows = (None, 0)
        if ring.mark is not None:
            marked, marked_rows = ring.mark.tables.get(name, (-1, 0))
        for path in self.run.table_paths(name, self.lane):
            with open_regular(path) as file:
                segment = read_header(file, path)
                if marked is not None:
                    if segment.number > marked:
                        break
                    if segment.stride > 1 and segment.last >= marked:
                        raise _MovedError
                declared[segment.declaration.id] = segment.declaration
                stop = marked_rows if segment.number == marked else segment.rows
                blocks.append(_rows_from(place, file, segment, stop))
        return join(blocks + _undrained_rows(ring.records, declared).get(name, []))

    def _lines(
        self, name: str, kind: int | None, ring: _Undrained, at: _Position, *, few: bool
    ) -> jsonl.JsonLines:
        stop = None
        if ring.mark is not None and kind is not None:
            stop = ring.mark.streams.get(name, 0)
        path, start = self.run.stream_path(name, self.lane), at.streams.get(name, 0)
        lines = jsonl.read_lines(path, start, stop, chosen(path, start, stop) if few else None)
        at.streams[name] = lines.end
        more, corrupt = _parsed((p for k, p in ring.records if k == kind), jsonl.decode)
        return replace(lines, objects=lines.objects + more, corrupt=lines.corrupt + corrupt)


class Tail:
    """Follows one lane: each ``poll`` gives what was appended since the one before.

    It reads the files only; what is still in the ring comes once it is drained. Segments
    may be opened, thinned and merged meanwhile: no row comes twice, and none is missed
    except those thinned away before they were polled.
    """

    def __init__(self, reader: LaneReader) -> None:
        """Begin before the first row; see ``LaneReader.tail``."""
        self._reader = reader
        self._at = _Position()

    def poll(self) -> LaneData:
        """What is new; ``.empty`` when nothing is."""

        def read(ring: _Undrained) -> tuple[LaneData, _Position]:
            at = self._at.copy()
            drained = _Undrained(ring.mark)
            return self._reader._collect(drained, None, at), at  # pyright: ignore[reportPrivateUsage]

        data, self._at = self._reader._steadily(read)  # pyright: ignore[reportPrivateUsage]
        return data


def read_run(run: Run) -> list[LaneData]:
    """Everything every lane of a run recorded, lane by lane."""
    return [LaneReader(run, lane).read() for lane in run.lanes()]


def _rows_from(place: _Place, file: BinaryIO, segment: Segment, stop: int) -> Rows:
    """The rows of a segment from ``place`` on, which moves behind them."""
    if segment.stride == 1:
        first = max(0, place.row - segment.start)
        rows = read_within(file, segment, first, stop)
        place.row = max(place.row, segment.start) + max(0, min(stop, segment.rows) - first)
    elif place.row < segment.end:
        rows = read_within(file, segment, 0, segment.rows)
        if place.row > segment.start:
            # Thinned before it was read to its end: left are the later steps that were kept.
            rows = rows[rows["step"] > place.step]
        place.row = segment.end
    else:
        rows = read_rows(file, segment, stop=0)
    if len(rows):
        place.step = int(rows["step"][-1])
    return rows


def _undrained_rows(
    records: Iterable[Record], declared: dict[int, Declaration]
) -> dict[str, list[Rows]]:
    """The rows in a ring by table; ``declared`` is what the headers of the files say."""
    blocks = TableBlocks(declared)
    for kind, payload in records:
        if kind >= FIRST_ROW:
            blocks.add(kind, payload)
        elif kind == DECLARATION:
            parsed, _ = _parsed([payload], lambda p: Declaration.from_dict(jsonl.decode(p)))
            for declaration in parsed:
                blocks.declare(declaration)
    return {
        name: [np.frombuffer(b"".join(rows), declaration.dtype) for declaration, rows in parts]
        for name, parts in blocks.parts.items()
    }


def _parsed(items: Iterable[Any], parse: Callable[[Any], _T]) -> tuple[list[_T], int]:
    """Each item parsed, and how many could not be."""
    good: list[_T] = []
    bad = 0
    for item in items:
        try:
            good.append(parse(item))
        except (ValueError, TypeError, KeyError):
            bad += 1
    return good, bad
