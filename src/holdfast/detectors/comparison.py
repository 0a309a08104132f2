"""Run the detectors that compare ranks over the lanes of a run.

The same function serves a live run, ``holdfast report`` and ``holdfast check``: its findings
depend on what was recorded alone, and are not recorded themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..run import LaneData
from ..types import Event, Finding
from . import ALL, Detector
from ._ranks import RankDetector, RankLane
from .ranking import ranked


@dataclass(frozen=True, kw_only=True)
class RankFindings:
    """Findings about ranks, each with the lane of the rank that it names."""

    found: tuple[tuple[str, Finding], ...] = ()
    errors: tuple[Event, ...] = ()
    """A ``holdfast_error`` for each detector that failed."""

    @property
    def findings(self) -> list[Finding]:
        """The findings, worst first."""
        return ranked(finding for _, finding in self.found)


def compare_ranks(
    data: Sequence[tuple[LaneData, Sequence[Finding]]],
    detectors: Iterable[type[Detector] | Detector] = ALL,
) -> RankFindings:
    """Compare the lanes of a run.

    Args:
        data: lanes, each with the findings about it alone.
        detectors: only those that compare ranks are asked.
    """
    asked = [d() if isinstance(d, type) else d for d in detectors]
    judges = [detector for detector in asked if isinstance(detector, RankDetector)]
    if len({lane.rank for lane, _ in data}) < 2 or not judges:
        return RankFindings()
    columns = sorted({name for judge in judges for name in judge.needs})
    found: list[tuple[str, Finding]] = []
    errors: list[Event] = []
    for lanes in _starts([RankLane.of(lane, findings, columns) for lane, findings in data]):
        by_rank = {lane.rank: lane for lane in lanes}
        for judge in judges:
            try:
                made = list(judge.compare(lanes))
            except Exception as error:
                errors.append(_failed(judge, lanes[0], error))
                continue
            found += [(by_rank[finding.rank].name, finding) for finding in made]
    return RankFindings(found=tuple(found), errors=tuple(errors))


def _starts(lanes: Sequence[RankLane]) -> Iterator[list[RankLane]]:
    """Lanes of the ranks that trained together; a launcher may start all of them several times.

    One that has trained counts before one that has not: a launcher, asked where it stands, has a
    lane too.
    """
    by_rank: dict[int, list[RankLane]] = {}
    for lane in lanes:
        by_rank.setdefault(lane.rank, []).append(lane)
    for rank, own in by_rank.items():
        trained = sorted((lane for lane in own if len(lane.rows)), key=_began)
        by_rank[rank] = trained or own[-1:]
    for start in range(max(map(len, by_rank.values()))):
        chosen = [by_rank[rank][start] for rank in sorted(by_rank) if start < len(by_rank[rank])]
        if len(chosen) > 1:
            yield chosen


def _began(lane: RankLane) -> float:
    return float(lane.rows["time"][0])


def _failed(judge: RankDetector, lane: RankLane, error: Exception) -> Event:
    return Event(
        time=float(lane.rows["time"][-1]) if len(lane.rows) else 0.0,
        rank=lane.rank,
        step=lane.last_step,
        kind="holdfast_error",
        data={
            "where": f"detector {judge.code} {judge.name}",
            "error": f"{type(error).__name__}: {error}",
        },
    )
