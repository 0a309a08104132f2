"""Typical step time of a run, slowdowns and stalls.

Steps are taken in blocks of eight, of which the median counts: a preempted step or a checkpoint
now and then moves no median. The first steps and steps that begin an epoch belong to no block.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ...records.lines import StepPace

BLOCK = 8
# The first steps: compilation, first allocations, caches.
_FIRST = 3
_KEPT = 512
# Seconds above the limit that no other process takes at a time, where that is not counted.
_CLEAR = 0.01


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Eight steps."""

    middle: float
    busy: float
    """The median of the processor time."""
    low: float
    waited: float
    total: float
    waits: tuple[float, ...]
    """Of each step, without what other processes may have made of them."""
    steady: float = 0.0
    """The median wait over the median step: a process in between moves neither."""
    queued: float = 0.0
    """Seconds in which other processes had the processor."""


@dataclass(frozen=True, slots=True)
class StalledStep:
    """A step far above the typical one."""

    step: int
    excess: float


class StepTimes:
    """The steps of one loop.

    Args:
        own: seconds of the run before it.
    """

    def __init__(self, own: float = 0.0) -> None:
        self.count = 0
        self.seconds = 0.0
        self.waited = 0.0
        """All steps but the first ones, the beginning of epochs and those under a profile."""
        self.own = own
        """Of the run's seconds those in which no other process had the processor."""
        self.blocks: deque[StepBlock] = deque(maxlen=_KEPT)
        self.stalls: deque[StalledStep] = deque(maxlen=64)
        self.limit = float("inf")
        """A step above this is a stall."""
        self.reference = float("inf")
        """The median of the fastest block so far."""
        self.reference_busy = float("inf")
        self._busy: list[float] = []
        self._walls: list[float] = []
        self._waits: list[float] = []
        self._clear: list[float] = []
        self._queued = 0.0

    def add(self, step: int, wall: float, busy: float, waited: float, queued: float = 0.0) -> bool:
        """Count a step; True when a block is full.

        Args:
            step: its number.
            wall: seconds that it took.
            busy: processor time.
            waited: for data.
            queued: seconds in which other processes had the processor.
        """
        self.count += 1
        if self.count <= _FIRST:
            return False
        self.seconds += wall
        self.own += max(0.0, wall - queued)
        self.waited += waited
        # Another process on the processor makes a step longer, but gives it no more to do; and one
        # that waits for its data is looked into as such.
        own = wall - queued
        if self._stalls(own, waited) and (
            busy > 1.5 * self.typical_busy or own > self.limit + _CLEAR
        ):
            self.stalls.append(StalledStep(step, own - self.typical))
        walls = self._walls
        walls.append(wall)
        self._busy.append(busy)
        self._waits.append(waited)
        self._clear.append(max(0.0, waited - queued))
        self._queued += queued
        if len(walls) < BLOCK:
            return False
        self._close()
        return True

    def pass_by(self, step: int, wall: float, waited: float) -> None:
        """Count a step that a profile has looked into: for the sums, not for what is typical."""
        self.seconds += wall
        self.waited += waited
        if self._stalls(wall, waited):
            self.stalls.append(StalledStep(step, wall - self.typical))

    def _stalls(self, wall: float, waited: float) -> bool:
        return wall > self.limit and waited < 0.5 * wall

    def _close(self) -> None:
        walls, waited = self._walls, sum(self._waits)
        ordered = sorted(walls)
        middle, busy, wait = (
            sorted(each)[(BLOCK - 1) // 2] for each in (walls, self._busy, self._waits)
        )
        self.reference_busy = min(self.reference_busy, busy)
        clear, steady = tuple(self._clear), wait / middle if middle else 0.0
        total = sum(walls)
        block = StepBlock(middle, busy, ordered[1], waited, total, clear, steady, self._queued)
        self.blocks.append(block)
        self.reference = min(self.reference, middle)
        # By the lower quartile: every second step may be slow.
        low = self.typical
        self.limit = 2.0 * low + 0.001
        self._walls, self._waits, self._clear, self._busy = [], [], [], []
        self._queued = 0.0

    @property
    def typical(self) -> float:
        """Typical recent step without a stall."""
        recent = [block.low for block in list(self.blocks)[-4:]]
        return sorted(recent)[len(recent) // 2] if recent else 0.0

    @property
    def typical_busy(self) -> float:
        """Typical recent processor time of a step."""
        recent = [block.busy for block in list(self.blocks)[-4:]]
        return min(recent, default=0.0)

    @property
    def middle(self) -> float:
        """The median step of the last block."""
        return self.blocks[-1].middle if self.blocks else 0.0

    def skewed(self) -> bool:
        """Whether few waits make most of the waiting."""
        waits = sorted(w for block in list(self.blocks)[-4:] for w in block.waits)
        return bool(waits) and sum(waits) / len(waits) > 2 * waits[len(waits) // 2]

    def share_waited(self, blocks: int = 2) -> float:
        """Share of the last steps spent waiting for data."""
        recent = list(self.blocks)[-blocks:]
        total = sum(b.total for b in recent)
        return sum(b.waited for b in recent) / total if total else 0.0

    def waits(self) -> float:
        """Share of the last steps spent waiting for data, in most steps or not for a processor."""
        recent = list(self.blocks)[-2:]
        own = sum(b.total - b.queued for b in recent)
        clear = sum(sum(b.waits) for b in recent) / own if own > 0 else 0.0
        return max(clear, min((b.steady for b in recent), default=0.0))

    def slower(self, factor: float, least: float) -> bool:
        """Whether the last two blocks take so many times the reference, and seconds more."""
        recent = list(self.blocks)[-2:]
        now = min((block.middle - block.queued / BLOCK for block in recent), default=0.0)
        return now >= factor * self.reference and now - self.reference >= least

    @property
    def busier(self) -> bool:
        """Whether the processor has more to do too: another process on it only takes time."""
        return bool(self.blocks) and self.blocks[-1].busy >= 1.2 * self.reference_busy

    def stalled(self, within: int) -> list[StalledStep]:
        """The stalls among the last steps; of those, the long ones that take most of the time."""
        if not self.stalls:
            return []
        newest = self.stalls[-1].step
        recent = [stall for stall in self.stalls if stall.step > newest - within]
        lost = 0.0
        half = sum(stall.excess for stall in recent) / 2
        for stall in sorted(recent, key=lambda stall: -stall.excess):
            lost += stall.excess
            if lost >= half:
                return [other for other in recent if other.excess >= stall.excess / 2]
        return recent

    def is_stall(self, wall: float) -> bool:
        """Whether a step took as long as the stalls that tell."""
        known = self.stalled(128)
        least = min((stall.excess for stall in known), default=0.0)
        return wall > self.limit and wall >= self.typical + least / 1.5

    def measured(self) -> StepPace:
        """Seconds of steps so far, for an Event."""
        return StepPace(
            fastest_block=round(self.reference, 8) if self.blocks else 0.0,
            last_block=round(self.middle, 8),
            typical=round(self.typical, 8),
            waiting=round(self.share_waited(16), 4),
            busier=self.busier,
            seconds=round(self.seconds, 4),
        )
