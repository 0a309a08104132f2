"""Trials measured against the answers: was it found, named right, in time, and at what cost."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from .corpus import STATUSES, Case
from .trial import Found, Trial

NEAR = 2
"""Lines beside the right one that still show it to a reader."""

GOALS = {"detected": 0.95, "code first": 0.90, "line exact": 0.75, "line ±2": 0.90}
"""Shares of the faults that have to be reached; healthy scripts must get no finding above info."""


@dataclass(frozen=True, kw_only=True)
class Grade:
    """How one trial did."""

    case: Case
    trial: Trial
    detected: bool
    """A finding of the right code, anywhere."""
    first: bool
    """The first finding has the right code."""
    exact: bool | None
    """The right finding names the right line; None when no line is given."""
    near: bool | None
    steps: int | None
    """From the first step of the fault until its code was known; negative when foreseen."""
    place: str
    """What was named: ``file:line``."""
    alarms: tuple[str, ...]
    """Codes above info that are neither the fault's nor a consequence of another finding."""

    @property
    def alive(self) -> bool:
        """The script came to its own end."""
        return self.trial.outcome == "finished" and self.trial.exit_code == 0


@dataclass(frozen=True, kw_only=True)
class Score:
    """The counts of several trials."""

    name: str
    faults: int
    healthy: int
    detected: int
    first: int
    lined: int
    """Faults whose line is known to the answers."""
    exact: int
    near: int
    alive: int
    """Faulty scripts that came to their end under holdfast."""
    accused: int
    """Healthy scripts with a finding above info."""
    broken: int
    """Healthy scripts that failed or were stopped."""
    steps: float | None
    """Median of the steps to detect."""
    cost: float | None
    """Median share of guard time, over all scripts."""

    @property
    def shares(self) -> dict[str, tuple[int, int]]:
        """What the goals are about: how many, of how many."""
        return {
            "detected": (self.detected, self.faults),
            "code first": (self.first, self.faults),
            "line exact": (self.exact, self.lined),
            "line ±2": (self.near, self.lined),
        }

    @property
    def missed(self) -> list[str]:
        """The goals that are missed, in words."""
        missed = [
            f"{name} {count} of {of}, wanted {GOALS[name]:.0%}"
            for name, (count, of) in self.shares.items()
            if of and count / of < GOALS[name]
        ]
        if self.accused:
            missed.append(
                f"findings above info on {self.accused} of {self.healthy} healthy scripts"
            )
        if self.broken:
            missed.append(f"{self.broken} of {self.healthy} healthy scripts did not finish")
        return missed


def grade(case: Case, trial: Trial) -> Grade:
    """Compare the findings with the answer."""
    right = [found for found in trial.findings if found.code in case.codes]
    best = right[0] if right else None
    known = [trial.known[found.code] for found in right if found.code in trial.known]
    lined = bool(case.places)
    return Grade(
        case=case,
        trial=trial,
        detected=bool(right),
        first=bool(right) and trial.findings[0] is right[0],
        exact=_at(case, best, 0) if lined else None,
        near=_at(case, best, NEAR) if lined else None,
        steps=min(known) - case.first_step if known else None,
        place=_place(best or (trial.findings[0] if trial.findings else None)),
        alarms=tuple(
            dict.fromkeys(
                found.code
                for found in trial.findings
                if found.severity != "info"
                and found.code not in case.codes
                and not found.consequence
            )
        ),
    )


def grades_of(cases: Sequence[Case], trials: Mapping[str, Trial]) -> list[Grade]:
    """The cases that have a trial, graded, in their order."""
    return [grade(case, trials[case.name]) for case in cases if case.name in trials]


def scores_by_status(grades: Sequence[Grade]) -> list[Score]:
    """A score for first contacts and one for regressions, where there are any."""
    parts = {status: [g for g in grades if g.case.status == status] for status in STATUSES}
    return [score(status, part) for status, part in parts.items() if part]


def scores_by_collection(grades: Iterable[Grade]) -> list[Score]:
    """A score for each collection, in the order of the grades."""
    parts: dict[str, list[Grade]] = {}
    for one in grades:
        parts.setdefault(one.case.collection, []).append(one)
    return [score(name, part) for name, part in parts.items()]


def score(name: str, grades: Sequence[Grade]) -> Score:
    """Count what the grades say."""
    faults = [g for g in grades if not g.case.healthy]
    healthy = [g for g in grades if g.case.healthy]
    lined = [g for g in faults if g.exact is not None]
    steps = [g.steps for g in faults if g.steps is not None]
    costs = [g.trial.guard_cost for g in grades if g.trial.guard_cost is not None]
    return Score(
        name=name,
        faults=len(faults),
        healthy=len(healthy),
        detected=sum(g.detected for g in faults),
        first=sum(g.first for g in faults),
        lined=len(lined),
        exact=sum(bool(g.exact) for g in lined),
        near=sum(bool(g.near) for g in lined),
        alive=sum(g.alive for g in faults),
        accused=sum(bool(g.alarms) for g in healthy),
        broken=sum(not g.alive for g in healthy),
        steps=statistics.median(steps) if steps else None,
        cost=statistics.median(costs) if costs else None,
    )


def _at(case: Case, found: Found | None, off: int) -> bool:
    return found is not None and any(
        found.file == PurePath(file).name and abs(found.line - line) <= off
        for file, line in case.places
    )


def _place(found: Found | None) -> str:
    return f"{found.file}:{found.line}" if found is not None and found.line else ""
