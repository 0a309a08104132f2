"""A few steps whose lines are timed, and what becomes of them: a ``line_times`` event.

What a look is for: ``reference`` (the first steps), ``look`` (without a symptom), ``waits``,
``slow``, ``stall``. Those of ``slow`` and ``stall`` carry ordinary steps beside them, as
``baseline``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from types import FrameType

from torch import nn

from ...records.lines import Purpose, StepCounts, TimedLines
from ...run.host_cores import cores_here
from . import step_counts
from .line_times import LineTimes
from .loop_clock import LoopClock, LoopLoader
from .measured_lines import MeasuredLines
from .profiles import (
    Spot,
    StepLoop,
    StepProfile,
    line_of,
    turn_of,
)
from .run_queue import Threads, longest
from .step_times import StepTimes

# Steps under a trace: at least, until so many seconds, at most; and on the hunt for rare ones.
_STEPS = 3
_SECONDS = 0.012
_MOST = 8
# Two are enough where they have kept the processor busy for so long.
_DEAR = 0.05
_LONGEST = 1.0
_HUNT = 48
# Rare steps that are caught.
_CAUGHT = 2
# Stalls among the last so many steps are written down.
_WITHIN = 100


class LineProfiler:
    """One look at the lines.

    Args:
        purpose: what it is for.
        lines: times them.
        times: of all steps.
        foreseen: the next step is expected to stall.
    """

    def __init__(
        self, purpose: Purpose, lines: LineTimes, times: StepTimes, *, foreseen: bool = False
    ) -> None:
        self.purpose: Purpose = purpose
        self.turn: StepLoop | None = None
        self.profile: StepProfile | None = None
        """Of ordinary steps, when it is over."""
        self.rare = purpose == "waits" and times.skewed()
        """Few waits make most of the waiting: those are hunted."""
        self._lines = lines
        self._times = times
        self._foreseen = foreseen
        self._busy = 0.0
        self._walls: list[float] = []
        self._waits: list[float] = []
        self._ends: list[Spot] = []
        self._in_line: Threads = {}
        self._delayed = 0.0
        """Seconds in all steps in which the thread that stood in line longest did so."""

    def begin(self, frame: FrameType, clock: LoopClock) -> bool:
        """Time the lines from here on; False where somebody else traces."""
        self.turn = turn_of(frame)
        self._in_line = clock.in_line()
        return self._lines.begin(frame)

    def step(self, clock: LoopClock, frame: FrameType) -> bool:
        """A step is over; True when that was the last one to look at."""
        # Nor is what other processes took a stall here, or a slow sample.
        wall = max(0.0, self._lines.step(clock.wall) - clock.queued)
        self._ends.append(line_of(frame))
        self._walls.append(math.inf if clock.begins else wall)
        self._waits.append(max(0.0, clock.waited - clock.queued))
        self._busy += clock.busy
        if not clock.begins:
            typical = wall if self.purpose == "stall" else min(wall, self._times.middle)
            self._times.pass_by(clock.step, typical, clock.waited)
        if self._lines.running and not self._enough():
            return False
        self._lines.stop(frame)
        self._delayed = longest(self._in_line, clock.in_line())
        return True

    def _enough(self) -> bool:
        hunts = self.purpose == "stall" or self.rare
        # Those that say nothing count: on a slow host each may be one, by what a trace costs us.
        if len(self._walls) >= (_HUNT if hunts else _MOST):
            return True
        walls = [wall for wall in self._walls if wall < math.inf]
        if self.purpose == "stall":
            caught = sum(map(self._times.is_stall, walls))
            one = bool(caught and self._foreseen and len(walls) > caught)
            return caught >= _CAUGHT or one
        if self.rare:
            blocks = self._times.blocks
            mean = sum(block.waited for block in blocks) / (8 * max(1, len(blocks)))
            return sum(w > mean for w in self._waits) >= _CAUGHT
        least = _STEPS if self._busy < _DEAR else 2
        enough = len(walls) >= least and sum(walls) >= _SECONDS
        return enough or sum(walls) > _LONGEST

    @property
    def ordinary(self) -> bool:
        """Whether it looks at steps like most others."""
        return self.purpose in ("reference", "look", "waits") and not self.rare

    @property
    def home(self) -> Spot | None:
        """Where steps are taken at several lines: the one at which the fewest are, once a turn."""
        places = set(self._ends)
        return min(places, key=self._ends.count) if len(places) > 1 else None

    def measure(
        self, parameters: int, models: Callable[[], Iterable[nn.Module]]
    ) -> StepProfile | None:
        """A step of the kind that was looked for; None where there were too few.

        ``models`` are those whose hooks are counted: a step is slower with each.
        """
        times = self._times
        chosen = [i for i, wall in enumerate(self._walls) if wall < math.inf]
        stalls = [i for i in chosen if times.is_stall(self._walls[i])]
        others = [i for i in chosen if i not in stalls]
        if self.purpose == "stall":
            self.profile = self._lines.profile(others) if others else None
            return self._lines.profile(stalls) if stalls else None
        if self.rare:
            least = max(self._waits) / 2
            if not least:
                return None
            return self._lines.profile([i for i in chosen if self._waits[i] >= least])
        # Under a trace all may look like stalls.
        if len(others) > 1:
            chosen = others
        self.profile = profile = self._lines.profile(chosen or None, times.middle)
        if self.purpose in ("reference", "waits", "slow"):
            if len(chosen) < 2 and self.purpose != "waits":
                return None
            profile.counts = StepCounts(
                parameters=parameters,
                registered=step_counts.registered_on(models()),
                retries=step_counts.retries(),
                delayed=self._delayed / len(self._walls),
            )
        return profile

    def measured(
        self, now: StepProfile, reference: StepProfile | None, loop_loader: LoopLoader, ranks: int
    ) -> TimedLines:
        """What the event says of the steps; ``ranks`` train together."""
        times, places, purpose = self._times, MeasuredLines(), self.purpose
        slow, stall = purpose == "slow", purpose == "stall"
        baseline = reference if slow else (self.profile or reference) if stall else None
        stalls = times.stalled(_WITHIN) if stall else ()
        return TimedLines(
            look=purpose,
            rare=self.rare,
            times=times.measured(),
            batch=loop_loader.batch,
            cores=cores_here(),
            passes=loop_loader.passes,
            ranks=ranks,
            turn=places.turn(self.turn) if self.turn is not None else None,
            stalls=tuple(
                (s.step, round(s.excess, 6), s.step in loop_loader.epochs) for s in stalls
            ),
            feeds=places.feeding(now) if stall else (),
            now=places.profile(now, baseline),
            baseline=places.profile(baseline, now) if baseline is not None else None,
            registering=places.registering() if slow else (),
            history=places.history(now) if slow else (),
            **places.reported(),
        )
