"""Group findings: each fault once, with the ranks that found it and its consequences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..detectors.peers import GONE
from ..detectors.ranking import explained, ranked
from ..types import Finding

_ENDS = ("RUN001", "RUN004", "MEM008")


@dataclass(frozen=True, kw_only=True)
class FindingGroup:
    """A finding, its ranks, and its consequences there and on other ranks."""

    finding: Finding
    ranks: tuple[int, ...]
    consequences: tuple[tuple[str, int], ...] = ()
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
        # Some detectors name a number of steps so, not which ones.
        steps = finding.evidence.get("steps"), finding.evidence.get("count")
        # What ends a process ends each at a place of its own.
        place = (finding.file, finding.line) if finding.code in _ENDS else ()
        groups.setdefault((finding.key, str(steps), restart, place), []).append(finding)
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
            consequences=tuple(
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
    ranks: set[int] = set()
    for finding in findings:
        compared = finding.evidence.get("ranks")
        ranks |= {finding.rank, *(compared if isinstance(compared, list) else ())}
    return tuple(sorted(ranks))


def _cause(finding: Finding, others: Iterable[Finding]) -> Finding | None:
    """The finding about another rank, or about all of them, that this one is a consequence of.

    All-reduce carries the NaN of one rank to all of them, where the loss is finite; and the end of
    one rank is an error on all others.
    """
    others = [other for other in others if other is not finding]
    for other in others:
        reported: Any = other.evidence.get("explains")
        if isinstance(reported, list) and [finding.code, finding.rank] in reported:
            return other
    if finding.code == "RUN001" and finding.evidence.get("headline") == GONE:
        ends = (o for o in others if o.code in (*_ENDS, "RNK005", "RNK008"))
        return next((o for o in ends if o.evidence.get("headline") != GONE), None)
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
