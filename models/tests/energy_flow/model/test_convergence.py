"""Each rule for stopping early, on scripted counts."""

from __future__ import annotations

import pytest
import torch

from holdfast_models.energy_flow.model.convergence import Convergence, DelayedFlag
from holdfast_models.energy_flow.model.settings import ConvergenceSettings


def stops_at(done: list[int], made: int = 100, alive: list[int] | None = None, **settings):
    """The first step before which the loop would stop; None if it never does."""
    rules = Convergence(ConvergenceSettings(**settings))
    state = rules.start()
    left = alive or [made - number for number in done]
    for step, (number, living) in enumerate(zip(done, left, strict=True)):
        state, stop = rules.update(
            state, torch.tensor(number), torch.tensor(made), torch.tensor(living), step
        )
        if stop:
            return step
    return None


def test_it_stops_when_enough_have_finished_but_not_before_the_least_steps():
    growing = [10, 30, 60, 80, 96, 97, 98, 99]
    assert stops_at(growing) == 5
    assert stops_at(growing, least_steps=0) == 4
    assert stops_at(growing, least_steps=0, threshold=0.6) == 2
    assert stops_at(growing, least_steps=0, threshold=0.99) == 7
    assert stops_at(growing, on=False) is None


def test_exactly_the_threshold_is_enough():
    assert stops_at([0, 94, 95], least_steps=0) == 2


def test_it_stops_when_nothing_is_alive():
    # Flows that died have not finished: the share alone would never be reached.
    assert stops_at([10, 20, 30, 40], alive=[80, 50, 0, 0], least_steps=0) == 2
    assert stops_at([10, 20, 30, 40], alive=[80, 50, 0, 0], least_steps=3) == 3


def test_it_stops_after_as_many_stalled_checks_as_patience_allows():
    # Two values of done, then the moving average of five is flat from the sixth 50 on.
    done = [20, 40, *[50] * 20]
    average = [
        sum(done[max(0, at - 4) : at + 1]) / len(done[max(0, at - 4) : at + 1]) for at in range(22)
    ]
    flat = next(at for at in range(1, 22) if average[at] < 1.01 * average[at - 1])
    assert flat == 7
    assert stops_at(done, least_steps=0, patience=1) == flat
    assert stops_at(done, least_steps=0, patience=3) == flat + 2
    assert stops_at(done, least_steps=0, patience=9) == flat + 8


def test_growth_sets_the_count_of_stalls_to_zero():
    done = [50, 50, 50, 60, 60, 60, 60, 60, 60, 60, 60, 60]
    # Stalls at checks 1 and 2; the average grows at 3 to 7, and is flat from 8 on.
    assert stops_at(done, least_steps=0, patience=3) == 10


def test_growth_of_less_than_one_percent_is_a_stall():
    assert stops_at([1000 + 9 * n for n in range(12)], made=10**6, least_steps=0) == 3
    assert stops_at([1000 + 50 * n for n in range(8)], made=10**6, least_steps=0) is None


def test_the_first_check_and_those_before_anything_finished_are_no_stalls():
    assert stops_at([0] * 30) is None
    assert stops_at([7, 7], least_steps=0, patience=1) == 1
    assert stops_at([0, 0, 0, 10, 10], least_steps=0, patience=1) is None


def test_late_and_mostly_finished_half_the_patience_is_enough():
    flat = [85] * 30
    # Stalls begin at check 1 of least_steps = 9, which is step 10; more than 6 // 2 at step 13.
    assert stops_at(flat, least_steps=9, patience=6) == 13
    assert stops_at([80] * 30, least_steps=9, patience=6) == 15
    # The stall count is above half at step 4 already, and holds from step 11 on.
    assert stops_at(flat, least_steps=0, patience=30) == 16
    assert stops_at(flat, least_steps=0, patience=12) == 11
    assert stops_at([80] * 30, least_steps=0, patience=12) == 12


def test_a_flag_once_set_stays():
    rules = Convergence(ConvergenceSettings(least_steps=0))
    state, hundred = rules.start(), torch.tensor(100)
    state, stop = rules.update(state, torch.tensor(99), hundred, torch.tensor(1), 0)
    assert stop
    # Children can lower the share again; the host may look only now.
    state, stop = rules.update(state, torch.tensor(99), 3 * hundred, torch.tensor(201), 1)
    assert stop
    assert state.stop


def test_a_check_makes_a_new_state_and_leaves_the_old_one():
    rules = Convergence(ConvergenceSettings(least_steps=0))
    start = rules.start()
    hundred = torch.tensor(100)
    first, _ = rules.update(start, torch.tensor(10), hundred, torch.tensor(90), 0)
    rules.update(first, torch.tensor(10), hundred, torch.tensor(90), 1)
    assert start.done_5.isnan().all()
    assert first.done_5.nan_to_num(-1).tolist() == [10, -1, -1, -1, -1]
    assert first.stall == 0


def test_on_a_cpu_a_look_sees_the_flag_at_once():
    flag = DelayedFlag()
    assert [flag.look(torch.tensor(value)) for value in (False, True, False)] == [
        False,
        True,
        False,
    ]


@pytest.mark.gpu
def test_on_a_gpu_a_look_sees_the_flag_of_the_look_before():
    flag = DelayedFlag()
    values = [True, False, True, True]
    seen = [flag.look(torch.tensor(value, device="cuda")) for value in values]
    assert seen == [False, True, False, True]
