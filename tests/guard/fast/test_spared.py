"""What is spared of torch is told from the steps of one optimizer, by quartiles."""

from __future__ import annotations

import gc

from holdfast.guard.fast.spared import _EVERY, _OTHERS, Spared
from holdfast.records.times import TimeSaved


class Steps:
    """Of an optimizer, which stand for themselves."""


def train(spared: Spared, steps: Steps, count: int, own: float, short: float) -> None:
    left = 1
    for _ in range(count):
        if spared.timed:
            spared.took(own if spared.own else short, steps=1)
        left -= 1
        if not left:
            left = spared.turn(steps)


def test_both_ways_are_compared_and_told_at_every_doubling() -> None:
    told: list[TimeSaved] = []
    spared = Spared(told.append)
    train(spared, Steps(), 70 * _EVERY, own=3e-4, short=1e-4)
    assert [one.samples for one in told] == [8, 16, 32]
    assert all(abs(one.seconds - 2e-4) < 1e-9 and one.own == 3e-4 for one in told)


def test_one_step_in_many_has_a_clock() -> None:
    spared, steps, timed, left = Spared(lambda _: None), Steps(), [0, 0], 1
    for _ in range(10 * 2 * _EVERY):
        timed[spared.own] += spared.timed
        left -= 1
        if not left:
            left = spared.turn(steps)
    assert timed == [10, 10]


def test_torch_is_never_said_to_cost_less_than_nothing() -> None:
    told: list[TimeSaved] = []
    train(Spared(told.append), Steps(), 20 * _EVERY, own=1e-4, short=2e-4)
    assert told[0].seconds == 0


def test_another_optimizer_waits_until_the_first_one_is_gone() -> None:
    spared, first, second = Spared(lambda _: None), Steps(), Steps()
    assert spared.turn(first) == 1 and spared.timed
    assert spared.turn(second) == _OTHERS and spared.timed
    spared.took(1e-4, steps=1)
    spared.took(1e-4, steps=1)  # both of an iteration
    assert spared.turn(first) == _EVERY - 1 and not spared.timed
    assert list(spared._found[False]) == [1e-4]
    del first
    gc.collect()
    assert spared.turn(second) == 1
