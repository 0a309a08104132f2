"""A lane at a glance: what a list of a hundred runs needs, without reading all they recorded.

Of the steps the first and the last row are read, of the events the kinds that are asked for.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TypeVar

from holdfast.errors import RunFolderError
from holdfast.regular_files import open_regular, remedy
from holdfast.run import jsonl
from holdfast.run.checked import event_of, finding_of
from holdfast.run.folder import Run, rank_of
from holdfast.run.reader import LaneReader
from holdfast.run.table import Rows, read_header, read_rows
from holdfast.types import Event, Finding

_Line = TypeVar("_Line")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """The span of a lane's steps, some of its events, its findings."""

    lane: str
    rank: int
    first_step: int = -1
    last_step: int = -1
    began: float = 0.0
    """When the first step was recorded."""
    events: tuple[Event, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def steps(self) -> int:
        """Steps from the first to the last."""
        return self.last_step - self.first_step + 1 if self.last_step >= 0 else 0


def glance_at(run: Run, lane: str, kinds: Collection[str]) -> Glance:
    """Look at a lane; ``RunFolderError`` when its files make no sense."""
    try:
        if run.ring_path(lane).exists():
            return _live(run, lane, kinds)
        ends = _ends(run, lane)
        events = _events(run, lane, kinds)
        findings = _good(jsonl.read_lines(run.stream_path("findings", lane)).objects, finding_of)
    except OSError as error:
        raise RunFolderError(
            f"cannot read {error.filename}: {error.strerror}, in {run.path}; {remedy(error)}"
        ) from error
    return _glance(lane, ends, events, findings)


def _live(run: Run, lane: str, kinds: Collection[str]) -> Glance:
    """A lane that is still in its ring, in part: few runs are, so all of it is read."""
    data = LaneReader(run, lane).read(tables=("steps",))
    ends = [data.steps[:1], data.steps[-1:]] if len(data.steps) else []
    return _glance(lane, ends, [e for e in data.events if e.kind in kinds], data.findings)


def _glance(lane: str, ends: list[Rows], events: list[Event], findings: list[Finding]) -> Glance:
    known = {(f.rank, f.key): f for f in findings}
    seen = Glance(
        lane=lane, rank=rank_of(lane), events=tuple(events), findings=tuple(known.values())
    )
    if not ends:
        return seen
    try:
        return Glance(
            lane=lane,
            rank=seen.rank,
            first_step=int(ends[0]["step"][0]),
            last_step=int(ends[1]["step"][-1]),
            began=float(ends[0]["time"][0]),
            events=seen.events,
            findings=seen.findings,
        )
    except ValueError as error:
        raise RunFolderError(f"the steps of lane {lane} have no column step and time") from error


def _ends(run: Run, lane: str) -> list[Rows]:
    """The first and the last row of the steps; nothing where there are none."""
    found: list[Rows] = []
    paths = run.table_paths("steps", lane)
    for ordered, last in ((paths, False), (reversed(paths), True)):
        for path in ordered:
            with open_regular(path) as file:
                segment = read_header(file, path)
                if segment.rows:
                    at = segment.rows - 1 if last else 0
                    found.append(read_rows(file, segment, at, at + 1))
                    break
    return found if all(map(len, found)) else []


def _events(run: Run, lane: str, kinds: Collection[str]) -> list[Event]:
    """The events of some kinds: other lines are passed over without being parsed."""
    wanted = re.compile(rb'"kind":"(?:%b)"' % b"|".join(kind.encode() for kind in kinds))
    lines = jsonl.whole_lines(run.stream_path("events", lane))
    # The words may stand in the text of another event, too.
    found = _good(
        (line for line in lines if wanted.search(line)), lambda line: event_of(jsonl.decode(line))
    )
    return [event for event in found if event.kind in kinds]


def _good(lines: Iterable[_Line], parse: Callable[[_Line], _T]) -> list[_T]:
    found: list[_T] = []
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            found.append(parse(line))
    return found
