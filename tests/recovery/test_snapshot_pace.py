"""How often snapshots are taken, from what they cost."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.config import RollbackSettings
from holdfast.recovery.snapshot_pace import Pace


class Event:
    """A CUDA event that passes at a millisecond, or has not yet."""

    def __init__(self, ms: float | None) -> None:
        self.ms = ms

    def query(self) -> bool:
        return self.ms is not None

    def elapsed_time(self, later: Event) -> float:
        assert self.ms is not None and later.ms is not None, "would have waited for the device"
        return later.ms - self.ms


def paced(ready: float | None, copied: float | None, *, times: int = 3) -> Pace:
    """Snapshots 16 steps of 10 ms apart, 0.4 ms of the host each, 0.5 % of the time allowed."""
    pace = Pace(RollbackSettings(every=16, cost=0.005))
    for number in range(times):
        events: Any = Event(ready), Event(copied)
        pace.taken(16 * number, 0.0004, 0.16 * number)
        pace.halted(*events)
    return pace


def test_cheap_ones_are_taken_as_often_as_the_settings_say() -> None:
    assert paced(5.0, 2.0).every == 16  # copied long before the optimizer was ready


def test_a_halt_of_the_optimizer_counts() -> None:
    pace = paced(2.0, 12.0, times=4)
    assert pace.every == 208  # 10.4 ms in 208 steps of 10 ms are 0.5 %
    assert pace.seconds == pytest.approx(3 * 0.0104 + 0.0004)


def test_events_that_have_not_passed_are_not_waited_for() -> None:
    assert paced(2.0, None).every == 16


def test_one_that_was_interrupted_says_nothing() -> None:
    pace = Pace(RollbackSettings(every=16, cost=0.005))
    for number, seconds in enumerate([0.0004, 2.0, 0.0004, 0.0004]):
        pace.taken(16 * number, seconds, 0.16 * number)
    assert pace.every == 16


def test_an_interval_that_the_first_ones_ask_for_is_reached_by_and_by() -> None:
    """Two that took 3 ms at the start left a run of 1 ms a step without one for 600 steps."""
    pace, step = Pace(RollbackSettings(every=16, cost=0.005)), 0
    taken: list[int] = []
    for seconds in (0.003, 0.003, 0.003, 0.0004, 0.0004, 0.0004, 0.0004):
        pace.taken(step, seconds, 0.001 * step)
        taken.append(step)
        step += pace.every
    assert taken[:4] == [0, 16, 80, 336] and pace.every == 80
