"""Trials measured against the answers: was it found, named right, in time, and at what cost."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ._catalogue import HALVES, Case
from ._trial import Said, Trial

NEAR = 2
"""Lines beside the right one that still show it to a reader."""

GOALS = {"detected": 0.95, "code right": 0.90, "line exact": 0.75, "line ±2": 0.90}
"""Shares that the unseen half has to reach; healthy scripts of both halves must stay silent."""


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
    """Codes above info that are not the fault's, nor told as a consequence of another."""

    @property
    def alive(self) -> bool:
        """The script came to its own end."""
        return self.trial.outcome == "finished" and self.trial.exit_code == 0

    @property
    def good(self) -> bool:
        """Nothing to complain of."""
        if self.case.healthy:
            return self.alive and not self.alarms
        return self.detected and self.first and self.exact is not False


@dataclass(frozen=True, kw_only=True)
class Score:
    """The counts of one half."""

    half: str
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
    alarmed: int
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
            "code right": (self.first, self.faults),
            "line exact": (self.exact, self.lined),
            "line ±2": (self.near, self.lined),
        }

    @property
    def missed(self) -> list[str]:
        """The goals that are missed, in words."""
        told: list[str] = []
        for name, (count, of) in self.shares.items():
            if self.half == "unseen" and of and count / of < GOALS[name]:
                told.append(f"{name} {count} of {of}, wanted {GOALS[name]:.0%}")
        if self.alarmed:
            told.append(f"findings above info on {self.alarmed} of {self.healthy} healthy scripts")
        if self.broken:
            told.append(f"{self.broken} of {self.healthy} healthy scripts did not finish")
        return told


def grade(case: Case, trial: Trial) -> Grade:
    """Compare what was said with what is true."""
    right = [said for said in trial.said if said.code in case.codes]
    best = right[0] if right else None
    known = [trial.known.get(said.code, said.step) for said in right]
    lined = bool(case.places)
    return Grade(
        case=case,
        trial=trial,
        detected=bool(right),
        first=bool(right) and trial.said[0] is right[0],
        exact=_at(case, best, 0) if lined else None,
        near=_at(case, best, NEAR) if lined else None,
        steps=min(known) - case.first_step if known else None,
        place=_place(best or (trial.said[0] if trial.said else None)),
        alarms=tuple(
            dict.fromkeys(
                said.code
                for said in trial.said
                if said.severity != "info" and said.code not in case.codes and not said.consequence
            )
        ),
    )


def grades_of(cases: Sequence[Case], trials: Mapping[str, Trial]) -> list[Grade]:
    """The cases that have a trial, graded, in the order of the catalogue."""
    return [grade(case, trials[case.name]) for case in cases if case.name in trials]


def scores_of(grades: Iterable[Grade]) -> list[Score]:
    """The score of each half of which something was tried."""
    halves = {half: [g for g in grades if g.case.half == half] for half in HALVES}
    return [_score(half, part) for half, part in halves.items() if part]


def _score(half: str, grades: Sequence[Grade]) -> Score:
    faults = [g for g in grades if not g.case.healthy]
    healthy = [g for g in grades if g.case.healthy]
    lined = [g for g in faults if g.exact is not None]
    steps = [g.steps for g in faults if g.steps is not None]
    costs = [g.trial.guard_cost for g in grades if g.trial.guard_cost is not None]
    return Score(
        half=half,
        faults=len(faults),
        healthy=len(healthy),
        detected=sum(g.detected for g in faults),
        first=sum(g.first for g in faults),
        lined=len(lined),
        exact=sum(bool(g.exact) for g in lined),
        near=sum(bool(g.near) for g in lined),
        alive=sum(g.alive for g in faults),
        alarmed=sum(bool(g.alarms) for g in healthy),
        broken=sum(not g.alive for g in healthy),
        steps=statistics.median(steps) if steps else None,
        cost=statistics.median(costs) if costs else None,
    )


def _at(case: Case, said: Said | None, off: int) -> bool:
    return said is not None and any(
        said.file == file and abs(said.line - line) <= off for file, line in case.places
    )


def _place(said: Said | None) -> str:
    return f"{said.file}:{said.line}" if said is not None and said.line else ""
