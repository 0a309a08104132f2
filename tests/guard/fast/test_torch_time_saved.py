"""What is spared of torch is told from the steps of one optimizer, by quartiles."""

from __future__ import annotations

import gc

from holdfast.guard.fast.torch_time_saved import _EVERY, _OTHERS, TorchTimeSaved
from holdfast.records.times import TimeSaved


class Steps:
    """Of an optimizer, which stand for themselves."""


def train(
    torch_time_saved: TorchTimeSaved, steps: Steps, count: int, own: float, short: float
) -> None:
    left = 1
    for _ in range(count):
        if torch_time_saved.timed:
            torch_time_saved.took(own if torch_time_saved.own else short, steps=1)
        left -= 1
        if not left:
            left = torch_time_saved.turn(steps)


def test_both_ways_are_compared_and_told_at_every_doubling() -> None:
    reported: list[TimeSaved] = []
    torch_time_saved = TorchTimeSaved(reported.append)
    train(torch_time_saved, Steps(), 70 * _EVERY, own=3e-4, short=1e-4)
    assert [one.samples for one in reported] == [8, 16, 32]
    assert all(abs(one.seconds - 2e-4) < 1e-9 and one.own == 3e-4 for one in reported)


def test_one_step_in_many_has_a_clock() -> None:
    torch_time_saved, steps, timed, left = TorchTimeSaved(lambda _: None), Steps(), [0, 0], 1
    for _ in range(10 * 2 * _EVERY):
        timed[torch_time_saved.own] += torch_time_saved.timed
        left -= 1
        if not left:
            left = torch_time_saved.turn(steps)
    assert timed == [10, 10]


def test_torch_is_never_said_to_cost_less_than_nothing() -> None:
    reported: list[TimeSaved] = []
    train(TorchTimeSaved(reported.append), Steps(), 20 * _EVERY, own=1e-4, short=2e-4)
    assert reported[0].seconds == 0


def test_another_optimizer_waits_until_the_first_one_is_gone() -> None:
    torch_time_saved, first, second = TorchTimeSaved(lambda _: None), Steps(), Steps()
    assert torch_time_saved.turn(first) == 1 and torch_time_saved.timed
    assert torch_time_saved.turn(second) == _OTHERS and torch_time_saved.timed
    torch_time_saved.took(1e-4, steps=1)
    torch_time_saved.took(1e-4, steps=1)  # both of an iteration
    assert torch_time_saved.turn(first) == _EVERY - 1 and not torch_time_saved.timed
    assert list(torch_time_saved._found[False]) == [1e-4]
    del first
    gc.collect()
    assert torch_time_saved.turn(second) == 1
