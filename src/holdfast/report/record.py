"""Everything readable of a run: rows, events, findings, and their summary.

``summarize`` refuses a damaged folder, so that no number is silently wrong. A report is most useful
then: this module skips the damaged parts and lists them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cached_property

from ..errors import RunFolderError
from ..run import (
    LaneData,
    LaneReader,
    Run,
    rank_of,
)
from ..run.table import NO_ROWS
from ..types import Finding
from .lanes import trusted
from .run_curves import RunCurves, earlier_lanes, run_curves_of
from .summary import RunSummary, summarize_lanes


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run folder as it was read: its lanes and their summary."""

    summary: RunSummary
    lanes: tuple[LaneData, ...]
    earlier: tuple[LaneData, ...] = ()
    """Lanes of the runs that this one goes on from, the earliest first."""

    @property
    def ranks(self) -> int:
        """How many ranks recorded something."""
        return len({lane.rank for lane in self.lanes})

    @cached_property
    def run_curves_of_ranks(self) -> list[RunCurves]:
        """Each rank from its first step to its last, in the order of their plots."""
        return run_curves_of(self.lanes, self.earlier)

    def lane_of(self, finding: Finding) -> LaneData | None:
        """The lane that made a finding; a rank that was started again has several."""
        lanes = [lane for lane in reversed(self.lanes) if lane.rank == finding.rank]
        made = [
            lane
            for lane in lanes
            if any((f.key, f.step) == (finding.key, finding.step) for f in lane.findings)
        ]
        return next(iter(made or lanes), None)


def read_record(run: Run) -> RunRecord:
    """Read all valid parts; damaged ones are named in ``summary.unreadable``."""
    lanes: list[LaneData] = []
    damage: list[str] = []
    for name in run.lanes():
        try:
            lanes.append(trusted(run, LaneReader(run, name).read()))
        except RunFolderError as error:
            damage.append(f"{name}: {error}")
            lanes.append(_salvaged(run, name))
    summary = summarize_lanes(run, lanes, tuple(damage))
    return RunRecord(summary=summary, lanes=tuple(lanes), earlier=tuple(earlier_lanes(run)))


def _salvaged(run: Run, name: str) -> LaneData:
    """A damaged lane: the tables that can be read, events and findings if these can."""
    reader = LaneReader(run, name)
    whole: list[str] = []
    for table in run.tables(name):
        with contextlib.suppress(RunFolderError):
            reader.table(table)
            whole.append(table)
    # Steps that cannot be trusted may be whole on disk: without them the rest still counts.
    for tables in (whole, [table for table in whole if table != "steps"]):
        with contextlib.suppress(RunFolderError):
            return trusted(run, reader.read(tables))
    return LaneData(
        lane=name, rank=rank_of(name), steps=NO_ROWS, tables={}, events=[], findings=[],
        batches=[],
    )  # fmt: skip
