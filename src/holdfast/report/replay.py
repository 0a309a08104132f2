"""Replay the detectors over a recorded run; the result of ``holdfast check``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..detectors import ALL, Detector
from ..detectors.comparison import compare_ranks
from ..detectors.judge import Judge
from ..run import LaneData, Run
from ..types import Event, Finding, Severity
from . import words
from .ending import RunEnding, ending_of
from .joined_findings import FindingGroup, join_ranks
from .lanes import read_lanes
from .layout import (
    WIDTH,
    Line,
    Span,
    line,
)
from .text import finding_lines


@dataclass(frozen=True, kw_only=True)
class ReplayedRun:
    """Findings of the detectors on a recorded run, and how it ended."""

    ending: RunEnding
    finding_groups: tuple[FindingGroup, ...]
    rows: int
    lanes: int
    errors: tuple[Event, ...] = ()
    """Detectors that failed on the way and were switched off."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, worst first."""
        return tuple(f for group in self.finding_groups for f in group.findings)

    @property
    def sick(self) -> bool:
        """Whether the run died, or has a finding above information."""
        return self.ending.died or any(f.severity > Severity.INFO for f in self.findings)


def replay(run: Run, detectors: Iterable[type[Detector] | Detector] = ALL) -> ReplayedRun:
    """Judge every row of a run again; live and offline give the same findings.

    Of runs so long that they were thinned, counts are those of the rows that are left.
    """
    chosen = list(detectors)
    found: list[tuple[str, Finding]] = []
    errors: list[Event] = []
    lanes = read_lanes(run)
    judged: list[tuple[LaneData, list[Finding]]] = []
    for lane in lanes:
        judge = Judge(chosen, rank=lane.rank)
        judge.feed(lane.steps, lane.events, lane.batches)
        judge.close()
        judged.append((lane, judge.findings))
        found += [(lane.lane, finding) for finding in judge.findings]
        errors += judge.errors
    compared = compare_ranks(judged, chosen)
    found += compared.found
    errors += compared.errors
    return ReplayedRun(
        ending=ending_of(run, [event for lane in lanes for event in lane.events]),
        finding_groups=join_ranks(found),
        rows=sum(len(lane.steps) for lane in lanes),
        lanes=len(lanes),
        errors=tuple(errors),
    )


def check_lines(result: ReplayedRun, width: int = WIDTH) -> list[Line]:
    """A replay as text: the verdict, how the run ended where that is worth a line, findings."""
    verdict = words.plural(len(result.findings), "finding")
    style = "bold red" if result.finding_groups else "bold"
    lanes = words.plural(result.lanes, "process", "es")
    of = f" in {words.plural(result.rows, 'row')} of {lanes}"
    lines = [line(Span(f"{verdict[:1].upper()}{verdict[1:]}", style), of)]
    if result.ending.line != "finished":
        style = "bold red" if result.ending.died else "bold yellow"
        lines.append(line(Span(words.capital(result.ending.line), style)))
    for group in result.finding_groups:
        lines += [line(), *finding_lines(group, width, several=result.lanes > 1)]
    return lines
