"""Decide when to time the lines of a run: symptoms, intervals, cost."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from ...records.lines import Purpose
from .step_times import BLOCK, StepTimes

# Steps until the lines are timed without a symptom, and how many times as many until the next.
_LOOK = 24
_MORE = 4
# Under a trace Python takes two to five times as long. The first look for a symptom comes at once.
# Further ones, all looks of the run with them, may cost a tenth of a young run's time; seconds, and
# a share, of that of an older one; and so many seconds in any: cheap ones come at once too, dear
# ones wait until they can pay. The second confirms the first, without which nobody is told, and may
# cost twice as much. Without a symptom the share alone counts.
_YOUNG = 0.1
_SPENT = 0.14
_SHARE = 0.03
_FREE = 0.03
_CONFIRMS = 2.0
# Symptoms. Waits: share of the time, seconds in all.
_WAITING = 0.25
_WAITED = 0.08
# Slower steps: times the fastest block, seconds.
_SLOWER = 1.35
_SLOWER_BY = 0.0004
# Stalls: share of the time, how many, or two of so many typical steps, within so many steps; steps
# between two that are foreseen.
_STALLED = 0.15
_STALLS = 3
_LONG = 4.0
_WITHIN = 100
_APART = 4


class ProfileOrders:
    """Says which profile is due: again, less and less often, as long as a symptom lasts."""

    def __init__(self) -> None:
        self.foreseen = 0
        """The step after which the next stall is expected; 0 for none."""
        self.spent = 0.0
        """Seconds of the processor that profiles have cost so far."""
        self._costs: dict[str, float] = {}
        """Those of the last profile of each kind, the first kind first."""
        self._asked: dict[str, int] = {}
        self._again: dict[str, int] = {}
        self._next_look = _LOOK

    def due(
        self,
        times: StepTimes,
        step: int,
        *,
        fed: bool,
        known: bool,
        workers: bool = False,
    ) -> Purpose | Literal[""]:
        """The profile to make now; "" for none.

        Args:
            times: of all steps; eight more of them are known than the last time.
            step: the last one.
            fed: the loop asks a loader for its batches.
            known: the lines of the first steps have been timed.
            workers: the loader has some: a look at them follows no lines.
        """
        waits = times.waits() >= _WAITING and times.waited >= _WAITED
        if waits and fed and self._may("waits", times, free=workers):
            return self.order("waits", times)
        if not known:
            return "reference"
        if times.slower(_SLOWER, _SLOWER_BY) and self._may("slow", times):
            return self.order("slow", times)
        if _stalls(times, step) and self._may("stall", times):
            self.foreseen = _next_stall(times, step)
            return "" if self.foreseen else self.order("stall", times)
        if times.count >= self._next_look and self._with_next("look") <= _SHARE * times.own:
            self._next_look = max(self._next_look, times.count) * _MORE
            return "look"
        return ""

    def _may(self, profile: str, times: StepTimes, *, free: bool = False) -> bool:
        asked = self._asked.get(profile, 0)
        young = _YOUNG * times.own
        affordable = min(young, _SPENT + _SHARE * times.own)
        if asked == 1:
            affordable = _CONFIRMS * young
        fits = free or not asked or self._with_next(profile) <= max(_FREE, affordable)
        return fits and times.count >= self._again.get(profile, 0)

    def _with_next(self, profile: str) -> float:
        """What profiles will have cost after this one: what the last such one did, or the first."""
        first = next(iter(self._costs.values()), 0.0)
        return self.spent + self._costs.get(profile, first)

    def begins(self, profile: str) -> None:
        """A profile is made from the next step on."""
        self._costs[profile] = 0.0

    def pay(self, profile: str, seconds: float) -> None:
        """It has cost so much more of the processor's time."""
        self.spent += seconds
        self._costs[profile] += seconds

    def order(self, profile: Purpose, times: StepTimes) -> Purpose:
        """Note that a profile is made now; the next one for the same symptom is due later."""
        asked = self._asked.get(profile, 0)
        self._asked[profile] = asked + 1
        self._again[profile] = times.count + BLOCK * 2 ** max(0, asked - 1)
        return profile


def _stalls(times: StepTimes, step: int) -> bool:
    """Whether stalls come back and take a good part of the time."""
    stalls = times.stalled(_WITHIN)
    long = all(stall.excess >= _LONG * times.typical for stall in stalls)
    if len(stalls) < (2 if long else _STALLS):
        return False
    span = step - stalls[0].step + 1
    lost = sum(stall.excess for stall in stalls)
    return lost >= _STALLED * (lost + span * times.typical)


def _next_stall(times: StepTimes, step: int) -> int:
    """The step before the next stall, where they come at equal distances; else 0."""
    steps = [stall.step for stall in times.stalled(_WITHIN)][-4:]
    gaps = {b - a for a, b in pairwise(steps)}
    if len(gaps) != 1 or (gap := gaps.pop()) <= _APART:
        return 0
    ahead = steps[-1]
    while ahead <= step + 1:
        ahead += gap
    return ahead - 1
