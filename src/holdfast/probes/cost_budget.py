"""Cost budget of the guard: above it, parts are dropped in a stated order, never the skip."""

from __future__ import annotations

import math

from ..records.run import BackedOff

# Steps per judgement; the first window (compilation, first allocations) does not count.
_WINDOW = 64
# Steps by which the pace is known.
_PACE = 8
# How much less often optional measurements are taken afterwards.
LEAN = 16

# Rows that have arrived from the device may wait this long to be handled together: one by one,
# between short steps, each would find the processor's caches cold.
_TOGETHER = 8
_TOGETHER_SECONDS = 0.02

MEASUREMENTS, WATCHERS, FLOOR = "measurements", "look-outs", "floor"
ORDER = {
    MEASUREMENTS: f"weights, layers, updates and memory are measured {LEAN} times less often",
    WATCHERS: "leaks and lost time are looked for in one step of eight",
}
"""What is dropped when the guard is above its budget, one part for each window of steps.

Snapshots have a budget of their own and pace themselves. What is left, the floor, is what a skip
needs: the loss and the norms of all gradients, which batch it was, and the row that says so.
"""
FLOOR_WORDS = "nothing else can be dropped: the rest is what skipping a bad step needs"


class CostBudget:
    """Compares host seconds spent in holdfast with the time the steps took."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.lean = False
        """Whether optional measurements are taken less often."""
        self.resting = False
        """Whether the watchers rest most of the time."""
        self.measured = self.per_step = 0.0
        """Our share of the last window, and our seconds in a step of it."""
        self.together = 1
        """How many rows from the device are handled at a time: more while steps are short."""
        self.pace = math.inf
        """Seconds of a step, by the last eight; endless while nothing is known."""
        self._reported = False
        self._ours = 0.0
        self._since: float | None = None
        self._last = 0.0
        self._steps = 0

    def spend(self, ours: float, now: float) -> str:
        """Count one step; the part that has just been dropped, the floor once, mostly nothing."""
        self._ours += ours
        self._steps += 1
        if self._steps % _PACE == 0:
            if self._last:
                self.pace = max(0.0, now - self._last) / _PACE
            self._last = now
        if self._steps % _WINDOW:
            return ""
        since, self._since = self._since, now
        spent, self._ours = self._ours, 0.0
        if since is None or now <= since:
            return ""
        self.together = max(1, min(_TOGETHER, int(_TOGETHER_SECONDS * _WINDOW / (now - since))))
        if self._reported:
            return ""
        self.measured, self.per_step = spent / (now - since), spent / _WINDOW
        return self._drop() if self.measured > self.share else ""

    def _drop(self) -> str:
        if not self.lean:
            self.lean = True
            return MEASUREMENTS
        if not self.resting:
            self.resting = True
            return WATCHERS
        self._reported = True
        return FLOOR

    def facts(self, part: str) -> BackedOff:
        """What was found and done about it, for an Event."""
        what, took = ORDER.get(part, FLOOR_WORDS), self.per_step * 1e3
        each = f"{took:.3g} ms" if took >= 1 else f"{took * 1e3:.0f} µs"
        return BackedOff(
            part=part,
            cost=self.measured,
            per_step=self.per_step,
            budget=self.share,
            why=f"the guard took {each} per step, {self.measured * 100:.0f} % of the time, "
            f"above its budget of {self.share * 100:.3g} %: {what}; skipping goes on as before",
        )
