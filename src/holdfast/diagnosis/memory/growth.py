"""Measure a leak: what grows, how fast, and which line does it.

Three looks some steps apart; what has grown at each of them, or hangs on graphs of long ago, is
followed for one or two steps more, so that the line that does it is seen at work. That is done once
for each value; the numbers are measured again as long as it goes on, at growing distance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from ...records.memory import GraphChain, StoringLine, ValueGrowth
from . import growth_facts
from .graph_carriers import GraphCarrier, GraphCarriers
from .line_watch import LineWatch
from .look_schedule import APART, LookSchedule
from .references import Held
from .value_sizes import GrownValue, Timeline, ValueSizes

# Bytes per step below which plain objects are not measured: a log of numbers. A quarter of what
# detectors accuse by default.
_LEAST = 2 << 10
# Values whose lines are followed at the same time, and how often for one: a single value may not
# have changed the first time.
_TOGETHER = 4
_TRIALS = 3
# Measurements of one value, each an eighth later than the one before: 150 steps of growth with
# looks of their own, then with those that are due anyway, up to 20,000 steps.
_OWN_LOOKS = 24
_RECORDS = 64

Record = Callable[[ValueGrowth | GraphChain, Any], None]


@dataclass(slots=True)
class _Thing:
    """What is known of one value that grows."""

    line: StoringLine = field(default_factory=StoringLine)
    trials: int = 0
    records: int = 0
    due: int = 0
    """Steps of growth from which on it is measured again."""


class GrowthWatch:
    """What grows, seen from one point of the loop.

    Args:
        timeline: which graph nodes belong to which step.
        record: takes what was measured, and the value itself.
        pass_steps: steps in one pass over the data, as far as known; 0 if not.
    """

    def __init__(self, timeline: Timeline, record: Record, pass_steps: Callable[[], int]) -> None:
        self._record, self._pass_steps = record, pass_steps
        self._value_sizes = ValueSizes(timeline)
        self.graph_carriers = GraphCarriers(timeline)
        """Asks the next loss, while it waits for one."""
        self._schedule = LookSchedule()
        self._lines = LineWatch()
        self._things: dict[tuple[str, str], _Thing] = {}
        self._waiting: list[GrownValue | GraphCarrier] = []

    @property
    def busy(self) -> bool:
        """Whether something grows, or is being followed."""
        return self._schedule.alert or self._lines.active or self.graph_carriers.waiting

    def order(self, step: int) -> None:
        """There is a sign of growth: look soon."""
        if not self.busy and self._schedule.order(step):
            self._value_sizes.begin()

    def tick(self, step: int, frame: FrameType) -> None:
        """A step has ended."""
        if self._lines.active:
            if self._lines.step_ended(frame):
                self._conclude()
        elif self.graph_carriers.waiting:
            self._name_carrier(step, frame)
        elif self._schedule.due(step):
            self._look(step, frame)

    def close(self) -> None:
        """The process ends: record what waits for its line without having seen it."""
        if self._lines.active:
            self._conclude()

    def _look(self, step: int, frame: FrameType) -> None:
        self._value_sizes.look(frame, step)
        if self._schedule.looked(step, self._value_sizes.seconds):
            self._compare(step, frame)
        self._value_sizes.close()

    def _compare(self, step: int, frame: FrameType) -> None:
        """Measure what has grown at every look, else what reaches back, else what grows rarely."""
        growing = _worth(self._value_sizes.growing())
        measured = self._measure(growing, frame)
        chained = [] if measured else self._value_sizes.chained()
        chained = [chain for chain in chained if chain.age >= self._chain(chain.held).due]
        if not measured and not chained:
            known = {growth.held.identity for growth in growing}
            rare = _worth(g for g in self._value_sizes.rarely() if g.held.identity not in known)
            self._measure(rare, frame)
            growing += rare
        waits = [wait for growth in growing if (wait := self._wait(growth)) is not None]
        self._schedule.plan(step, min(waits, default=None))
        if chained:
            self.graph_carriers.ask(self._value_sizes, chained)

    def _wait(self, growth: GrownValue) -> int | None:
        """Steps until it is to be measured again; None where that can wait for any look."""
        thing = self._thing(growth)
        wait = thing.due - growth.record.steps
        return wait if wait <= 0 or thing.records < _OWN_LOOKS else None

    def _measure(self, growing: list[GrownValue], frame: FrameType) -> bool:
        """Record what is due, follow the lines of what is new; whether there was anything."""
        # What was measured before is measured again while it certainly goes on.
        due = [
            growth
            for growth in growing
            if growth.record.steps >= self._thing(growth).due
            and (self._schedule.close or not self._thing(growth).records)
        ]
        for growth in due:
            growth.record = growth_facts.of_growth(growth.record, growth.held, self._pass_steps())
        self._take(due, frame)
        return bool(due)

    def _name_carrier(self, step: int, frame: FrameType) -> None:
        """One step later: which tensor of the step before leads into the new graphs?"""
        for chain in self.graph_carriers.suspected:
            self._postpone(self._chain(chain.held), chain.age)
        found = self.graph_carriers.answer(self._value_sizes, frame, step)
        self._take([found] if found is not None else [], frame)
        self._value_sizes.close()
        self._schedule.soon(step)

    def _take(self, growing: Sequence[GrownValue | GraphCarrier], frame: FrameType) -> None:
        """Record those whose line is known; follow the lines of the others."""
        unknown: list[GrownValue | GraphCarrier] = []
        for growth in growing:
            thing = self._thing(growth)
            trials = _TRIALS if growth.record.single else 1
            if thing.line.seen == "trace" or thing.trials >= trials:
                self._write(growth, thing)
            elif len(unknown) < _TOGETHER:
                thing.trials += 1
                unknown.append(growth)
        if unknown:
            self._waiting = unknown
            self._lines.start([growth.held for growth in unknown], frame)

    def _conclude(self) -> None:
        waiting, self._waiting = self._waiting, []
        for growth, changes in zip(waiting, self._lines.stop(), strict=True):
            thing = self._thing(growth)
            thing.line = growth_facts.of_line(growth.held, changes, self._lines.steps)
            self._write(growth, thing)

    def _write(self, growth: GrownValue | GraphCarrier, thing: _Thing) -> None:
        thing.records += 1
        self._postpone(thing, growth.record.steps)
        self._record(growth.record.replace(**vars(thing.line)), growth.held.value)

    def _postpone(self, thing: _Thing, steps: int) -> None:
        """Measure again an eighth later, and at the end of each pass over the data."""
        thing.due = steps + max(APART, steps // 8) if thing.records < _RECORDS else 1 << 60
        whole = self._pass_steps()
        if whole:
            thing.due = min(thing.due, (steps // whole + 1) * whole)

    def _thing(self, growth: GrownValue | GraphCarrier) -> _Thing:
        kind = growth.record.kind
        return self._things.setdefault((kind, growth.held.identity), _Thing())

    def _chain(self, held: Held) -> _Thing:
        return self._things.setdefault((GraphChain.kind, held.identity), _Thing())


def _worth(growing: Iterable[GrownValue]) -> list[GrownValue]:
    found = ((growth, growth.record) for growth in growing)
    return [g for g, r in found if (r.graphs and not r.single) or r.bytes >= _LEAST]
