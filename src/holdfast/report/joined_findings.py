"""Group findings: each fault once, with the ranks that found it and its consequences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..detectors.ranking import explained, ranked
from ..types import Finding


@dataclass(frozen=True, kw_only=True)
class FindingGroup:
    """A finding, its ranks, and its consequences there and on other ranks."""

    finding: Finding
    ranks: tuple[int, ...]
    echoes: tuple[tuple[str, int], ...] = ()
    """Code and rank of findings elsewhere that this one explains."""
    follows: tuple[FindingGroup, ...] = ()
    """Findings that this one explains, listed below it."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """This one, and those that follow from it."""
        return self.finding, *(f for group in self.follows for f in group.findings)


def join_ranks(found: Iterable[tuple[str, Finding]]) -> tuple[FindingGroup, ...]:
    """Rank and group the findings of all lanes: each once, consequences with their cause.

    Args:
        found: pairs of lane and finding.
    """
    groups: dict[tuple[Any, ...], list[Finding]] = {}
    for lane, finding in found:
        restart = lane.partition("-")[2]
        steps = (*finding.evidence.get("steps", ()), finding.evidence.get("count"))
        groups.setdefault((finding.key, str(steps), restart), []).append(finding)
    for same in groups.values():
        # One rank represents all: one that knows the cause.
        same.sort(key=lambda finding: "cause" not in finding.evidence)
    by_first = {id(same[0]): same for same in groups.values()}
    order = ranked(same[0] for same in groups.values())
    elsewhere = {id(finding): _cause(finding, order) for finding in order}
    shown = [finding for finding in order if elsewhere[id(finding)] is None]
    because = explained(shown)

    def group(finding: Finding) -> FindingGroup:
        return FindingGroup(
            finding=finding,
            ranks=_ranks(by_first[id(finding)]),
            echoes=tuple(
                (echo.code, rank)
                for echo in order
                if elsewhere[id(echo)] is finding
                for rank in _ranks(by_first[id(echo)])
            ),
            follows=tuple(group(f) for f in shown if because.get(id(f)) is finding),
        )

    roots: dict[int, Finding] = {}
    for finding in shown:
        # A cause is ranked by its worst consequence.
        while id(finding) in because:
            finding = because[id(finding)]
        roots.setdefault(id(finding), finding)
    return tuple(map(group, roots.values()))


def _ranks(findings: Iterable[Finding]) -> tuple[int, ...]:
    return tuple(sorted({finding.rank for finding in findings}))


def _cause(finding: Finding, others: Iterable[Finding]) -> Finding | None:
    """The finding on another rank that made these gradients bad at the same steps, if any.

    All-reduce carries the NaN of one rank to all of them, where the loss is finite.
    """
    if finding.code != "NUM002":
        return None
    steps = set(finding.evidence.get("steps", [finding.step]))
    for other in others:
        if (
            other.code in ("NUM005", "NUM003", "NUM001")
            and other.rank != finding.rank
            and steps <= set(other.evidence.get("steps", [other.step]))
        ):
            return other
    return None
