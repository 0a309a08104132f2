"""Replay the detectors over a recorded run; the result of ``holdfast check``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..detectors import ALL, Detector
from ..detectors.judge import Judge
from ..run import Run
from ..types import Event, Finding
from . import words
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
class Replay:
    """Findings of the detectors on a recorded run."""

    finding_groups: tuple[FindingGroup, ...]
    rows: int
    lanes: int
    errors: tuple[Event, ...] = ()
    """Detectors that failed on the way and were switched off."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, worst first."""
        return tuple(f for group in self.finding_groups for f in group.findings)


def replay(run: Run, detectors: Iterable[type[Detector] | Detector] = ALL) -> Replay:
    """Judge every row of a run again; live and offline give the same findings.

    Of runs so long that they were thinned, counts are those of the rows that are left.
    """
    chosen = list(detectors)
    found: list[tuple[str, Finding]] = []
    errors: list[Event] = []
    lanes = read_lanes(run)
    for lane in lanes:
        judge = Judge(chosen, rank=lane.rank)
        judge.feed(lane.steps, lane.events, lane.batches)
        judge.close()
        found += [(lane.lane, finding) for finding in judge.findings]
        errors += judge.errors
    return Replay(
        finding_groups=join_ranks(found),
        rows=sum(len(lane.steps) for lane in lanes),
        lanes=len(lanes),
        errors=tuple(errors),
    )


def check_lines(result: Replay, width: int = WIDTH) -> list[Line]:
    """A replay as text: the verdict, then every finding."""
    verdict = words.plural(len(result.findings), "finding")
    style = "bold red" if result.finding_groups else "bold green"
    lanes = words.plural(result.lanes, "process", "es")
    of = f" in {words.plural(result.rows, 'row')} of {lanes}"
    lines = [line(Span(f"{verdict[:1].upper()}{verdict[1:]}", style), of)]
    for group in result.finding_groups:
        lines += [line(), *finding_lines(group, width, several=result.lanes > 1)]
    return lines
