"""Schedules: their shape, their ratios, what others do to the rates, and going on from a state."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from holdfast.actions.lower_learning_rate import lower_learning_rates
from holdfast.checkpoint.training_state import TrainingState
from holdfast.config import load
from holdfast.errors import CheckpointError, SettingsError
from holdfast.training.schedules import Schedule, ScheduleSettings

EVERY = [
    ScheduleSettings(name="constant", warmup=3),
    ScheduleSettings(name="linear", warmup=3, warmup_from=0.01, floor=0.1),
    ScheduleSettings(name="cosine", warmup=3),
    ScheduleSettings(name="restarts", warmup=3, period=4, mult=1.5),
    ScheduleSettings(name="onecycle", warmup=2),
    ScheduleSettings(name="plateau", warmup=3, patience=0),
]
KINDS = pytest.mark.parametrize("settings", EVERY, ids=lambda settings: settings.name)


def sgd(*rates: Any) -> torch.optim.Optimizer:
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups, lr=1.0)


def rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def walk(schedule: Schedule, optimizer: torch.optim.Optimizer, count: int) -> list[list[float]]:
    """The rates of so many steps, with a validation that never gains after every second."""
    found = []
    for number in range(count):
        optimizer.step()
        found.append(rates(optimizer))
        schedule.step()
        if number % 2:
            schedule.validated(1.0)
    return found


def factors(settings: ScheduleSettings, steps: int | None, count: int) -> list[float]:
    optimizer = sgd(1.0)
    return [one[0] for one in walk(Schedule(optimizer, settings, steps), optimizer, count)]


def torchs(scheduler: type, count: int, **options: Any) -> list[float]:
    optimizer = sgd(1.0)
    schedule = scheduler(optimizer, **options)
    found = []
    for _ in range(count):
        optimizer.step()
        found.append(rates(optimizer)[0])
        schedule.step()
    return found


def test_warm_up_is_linear_and_begins_above_zero():
    assert factors(ScheduleSettings(warmup=4), None, 6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_goes_down_to_the_floor_after_the_last_step():
    settings = ScheduleSettings(name="linear", floor=0.2)
    assert factors(settings, 4, 4) == pytest.approx([1.0, 0.8, 0.6, 0.4])


@pytest.mark.parametrize(
    ("settings", "scheduler", "options"),
    [
        (
            ScheduleSettings(name="cosine", floor=0.1),
            lr_scheduler.CosineAnnealingLR,
            {"T_max": 40, "eta_min": 0.1},
        ),
        (
            ScheduleSettings(name="restarts", period=7, mult=1.0),
            lr_scheduler.CosineAnnealingWarmRestarts,
            {"T_0": 7},
        ),
        (
            ScheduleSettings(name="restarts", period=5, mult=2.0, floor=0.05),
            lr_scheduler.CosineAnnealingWarmRestarts,
            {"T_0": 5, "T_mult": 2, "eta_min": 0.05},
        ),
        (
            ScheduleSettings(name="onecycle"),
            lr_scheduler.OneCycleLR,
            {"max_lr": 1.0, "total_steps": 40, "cycle_momentum": False},
        ),
    ],
)
def test_the_shapes_are_those_of_torch(settings, scheduler, options):
    count = 39  # torch's one-cycle refuses to go further
    assert factors(settings, 40, count) == pytest.approx(torchs(scheduler, count, **options))


@given(
    name=st.sampled_from(["linear", "cosine", "restarts", "onecycle"]),
    steps=st.integers(1, 60),
    warmup=st.integers(0, 70),
    floor=st.sampled_from([0.0, 0.3, 1.0]),
    period=st.integers(1, 9),
    mult=st.sampled_from([1.0, 1.01, 1.5, 2.0, 3.0]),
    pct_start=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
)
def test_no_rate_is_ever_zero_or_above_what_was_set(steps, **options: Any):
    found = factors(ScheduleSettings(**options), steps, steps + 5)  # also beyond the end
    assert all(0.0 < factor <= 1.0 + 1e-12 for factor in found)


def test_the_last_step_of_a_very_long_run_still_has_a_rate():
    optimizer = sgd(1.0)
    schedule = Schedule(optimizer, ScheduleSettings(name="cosine"), 10**10)
    schedule.load_state_dict(schedule.state_dict() | {"count": 10**10 - 2})
    schedule.step()
    assert 0.0 < rates(optimizer)[0] < 1e-15


@pytest.mark.parametrize("mult", [1.1, 1.5, 2.0, 3.0])
def test_every_period_begins_at_the_full_rate(mult):
    found = factors(ScheduleSettings(name="restarts", period=10, mult=mult), None, 400)
    begins = [n for n in range(1, 400) if found[n] > found[n - 1]]
    lengths = [after - before for before, after in zip([0, *begins], begins, strict=False)]
    assert lengths[:5] == pytest.approx([10 * mult**k for k in range(5)][: len(lengths)], abs=1)
    assert found[0] == 1.0 and begins[0] == 10


def test_a_period_begins_where_the_logarithm_is_a_bit_too_low():
    found = factors(ScheduleSettings(name="restarts", period=1, mult=3.0), None, 400)
    assert [n for n, factor in enumerate(found) if factor == 1.0] == [0, 1, 4, 13, 40, 121, 364]


@pytest.mark.parametrize("name", ["linear", "cosine", "onecycle"])
def test_a_run_that_goes_on_for_longer_keeps_the_rate_of_its_last_step(name):
    found = factors(ScheduleSettings(name=name, warmup=2), 10, 14)
    assert found[9:] == [found[9]] * 5
    assert found[9] < found[8]


def test_groups_keep_their_ratios():
    optimizer = sgd(0.1, 0.01)
    found = walk(Schedule(optimizer, ScheduleSettings(name="cosine", warmup=2), 10), optimizer, 10)
    assert [a / b for a, b in found] == pytest.approx([10.0] * 10)
    assert [group["initial_lr"] for group in optimizer.param_groups] == [0.1, 0.01]


def test_a_base_rate_that_is_there_is_taken():
    optimizer = sgd(0.3)
    optimizer.param_groups[0]["initial_lr"] = 0.8
    Schedule(optimizer, ScheduleSettings(warmup=2), None)
    assert rates(optimizer) == [0.4]


def test_a_plateau_lowers_the_rate_when_nothing_is_gained():
    optimizer = sgd(1.0)
    settings = ScheduleSettings(name="plateau", patience=1, factor=0.1, floor=0.05, threshold=0.1)
    schedule = Schedule(optimizer, settings, None)
    seen = []
    for value in [1.0, 0.95, 0.8, 0.8, math.nan, 0.79, 0.6, 0.6, 0.6, math.inf, 0.6]:
        schedule.validated(value)
        seen.append(rates(optimizer)[0])
    assert seen == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05])


def test_a_plateau_lowers_what_somebody_else_has_lowered():
    optimizer = sgd(1.0)
    schedule = Schedule(optimizer, ScheduleSettings(name="plateau", patience=0), None)
    schedule.validated(1.0)
    optimizer.param_groups[0]["lr"] = 0.25
    schedule.validated(1.0)
    assert rates(optimizer) == [0.125]


def test_a_plateau_knows_gains_below_zero():
    optimizer = sgd(1.0)
    schedule = Schedule(optimizer, ScheduleSettings(name="plateau", patience=0), None)
    for value in (-1.0, -1.1, -1.2):
        schedule.validated(value)
    assert rates(optimizer) == [1.0]
    schedule.validated(-1.20001)  # less than the threshold
    assert rates(optimizer) == [0.5]


def test_a_plateau_that_begins_with_nothing_finite_waits_for_the_first_value():
    optimizer = sgd(1.0)
    schedule = Schedule(optimizer, ScheduleSettings(name="plateau", patience=1), None)
    for value in (math.nan, 5.0, 4.0):
        schedule.validated(value)
    assert rates(optimizer) == [1.0]


def test_validations_mean_nothing_to_the_other_kinds():
    optimizer = sgd(1.0)
    schedule = Schedule(optimizer, ScheduleSettings(patience=0), None)
    for _ in range(3):
        schedule.validated(1.0)
    assert rates(optimizer) == [1.0]


@KINDS
def test_a_rate_that_somebody_lowers_stays_lower(settings):
    one, other = sgd(0.1, 0.01), sgd(0.1, 0.01)
    plain, changed = Schedule(one, settings, 20), Schedule(other, settings, 20)
    assert walk(plain, one, 5) == walk(changed, other, 5)
    lower_learning_rates([other], [changed], 0.5)  # as a rollback does
    expected = [[rate / 2 for rate in both] for both in walk(plain, one, 15)]
    assert walk(changed, other, 15) == expected
    assert [group["initial_lr"] for group in other.param_groups] == [0.05, 0.005]


def test_the_ratio_is_kept_for_the_group_it_was_made_in_and_twice_if_made_twice():
    optimizer = sgd(0.1, 0.01)
    schedule = Schedule(optimizer, ScheduleSettings(), None)
    for _ in range(2):
        optimizer.param_groups[0]["lr"] *= 0.5
        walk(schedule, optimizer, 2)
    assert rates(optimizer) == [0.025, 0.01]


def test_a_rate_that_is_switched_off_can_be_switched_on_again():
    optimizer = sgd(0.1)
    schedule = Schedule(optimizer, ScheduleSettings(name="linear"), 10)
    optimizer.param_groups[0]["lr"] = 0.0
    walk(schedule, optimizer, 2)
    assert rates(optimizer) == [0.0]
    optimizer.param_groups[0]["lr"] = 0.4  # 0.8 of a base rate of 0.5
    walk(schedule, optimizer, 3)
    assert rates(optimizer) == pytest.approx([0.25])


def test_a_change_of_the_rate_survives_a_state_taken_before_the_next_step():
    one, other = sgd(0.1), sgd(0.1)
    first = Schedule(one, ScheduleSettings(name="linear"), 10)
    walk(first, one, 3)
    one.param_groups[0]["lr"] *= 0.3
    second = Schedule(other, ScheduleSettings(name="linear"), 10)
    second.load_state_dict(first.state_dict())
    assert rates(other) == rates(one)
    assert walk(second, other, 5) == walk(first, one, 5)


def test_a_rate_in_a_tensor_is_written_in_place_and_a_change_is_seen():
    tensor = torch.tensor(0.1)
    optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=tensor, foreach=False)
    schedule = Schedule(optimizer, ScheduleSettings(warmup=2), None)
    assert optimizer.param_groups[0]["lr"] is tensor and tensor.item() == pytest.approx(0.05)
    schedule.step()
    schedule.step()
    assert optimizer.param_groups[0]["initial_lr"] == pytest.approx(0.1)
    tensor.mul_(0.5)
    schedule.step()
    assert tensor.item() == pytest.approx(0.05)
    assert optimizer.param_groups[0]["initial_lr"] == pytest.approx(0.05)


class Unread(torch.Tensor):
    """A tensor whose value nobody may ask for, as on a device that is busy."""

    def __float__(self) -> float:
        raise AssertionError("the host waited for the device")

    item = __float__


def test_a_rate_in_a_tensor_is_not_read_while_nobody_changes_it():
    optimizer = sgd(0.1)
    unread = torch.tensor(0.1).as_subclass(Unread)
    optimizer.param_groups[0].update(lr=unread, initial_lr=0.1)
    schedule = Schedule(optimizer, ScheduleSettings(name="linear"), 10)
    for _ in range(3):
        schedule.step()
    unread.mul_(0.5)
    with pytest.raises(AssertionError, match="waited"):
        schedule.step()


@KINDS
def test_n_steps_a_state_and_n_steps_are_two_n_steps(settings):
    one = sgd(0.1, 0.03)
    whole = Schedule(one, settings, 24)
    first = walk(whole, one, 10)
    saved = json.loads(json.dumps(whole.state_dict()))  # plain numbers, every bit of them
    other = sgd(0.7, 0.7)  # not even the rates of the optimizer are needed
    again = Schedule(other, settings, 24)
    again.load_state_dict(saved)
    assert rates(other) == rates(one)
    assert walk(again, other, 14) == (rest := walk(whole, one, 14))
    assert len({rate for rate, _ in first + rest}) > 3 or settings.name == "constant"


def test_a_checkpoint_puts_the_optimizer_and_its_schedule_back_together():
    one, settings = sgd(0.1, 0.01), ScheduleSettings(name="cosine", warmup=2)
    schedule = Schedule(one, settings, 12)
    training_state = TrainingState({}, [one], schedulers=[schedule])
    walk(schedule, one, 3)
    lower_learning_rates([one], [schedule], 0.7)
    saved = copy.deepcopy(training_state.state())
    rest = walk(schedule, one, 9)
    training_state.put_back(saved)
    assert walk(schedule, one, 9) == rest
    assert not saved["left_out"]
    other = sgd(0.1, 0.01)
    fresh = Schedule(other, settings, 12)
    TrainingState({}, [other], schedulers=[fresh]).put_back(saved)
    assert walk(fresh, other, 9) == rest


def test_a_state_of_another_optimizer_is_refused():
    saved = Schedule(sgd(0.1), ScheduleSettings(), None).state_dict()
    with pytest.raises(CheckpointError, match="has 1 parameter groups, the optimizer has 2"):
        Schedule(sgd(0.1, 0.1), ScheduleSettings(), None).load_state_dict(saved)


@pytest.mark.parametrize("name", ["linear", "cosine", "onecycle"])
def test_a_schedule_that_needs_the_length_of_the_run_says_what_to_set(name):
    with pytest.raises(SettingsError, match=f"schedule '{name}' needs the number .* set steps"):
        Schedule(sgd(0.1), ScheduleSettings(name=name), None)


def test_restarts_say_that_they_need_a_period():
    with pytest.raises(SettingsError, match="set period to a number of steps"):
        Schedule(sgd(0.1), ScheduleSettings(name="restarts"), 10)


@pytest.mark.parametrize(
    "text", ["name=cosin", "warmup=-1", "floor=1.5", "mult=0.5", "factor=0", "period=0", "div=0"]
)
def test_impossible_settings_are_refused_when_they_are_read(text):
    with pytest.raises(SettingsError, match=text.partition("=")[0]):
        load(None, [text], kind=ScheduleSettings)


def test_warm_up_begins_at_the_share_that_was_set_and_ends_at_the_full_rate():
    found = factors(ScheduleSettings(warmup=5, warmup_from=0.01), None, 6)
    assert found == pytest.approx([0.01, 0.2575, 0.505, 0.7525, 1.0, 1.0])
    assert factors(ScheduleSettings(warmup=1, warmup_from=0.5), None, 2) == [0.5, 1.0]


def test_epochs_are_converted_to_steps():
    optimizer = sgd(1.0)
    settings = ScheduleSettings(name="restarts", warmup=1, warmup_epochs=0.5, period_epochs=2.0)
    schedule = Schedule(optimizer, settings, None, epoch=6)
    assert (schedule.settings.warmup, schedule.settings.period) == (4, 12)
    found = [one[0] for one in walk(schedule, optimizer, 17)]
    assert found[:4] == [0.25, 0.5, 0.75, 1.0] and found[4] == found[16] == 1.0


@pytest.mark.parametrize(
    ("settings", "instead"),
    [
        (ScheduleSettings(warmup_epochs=1.0), "warmup"),
        (ScheduleSettings(name="restarts", period_epochs=1.0), "period"),
    ],
)
def test_epochs_of_unknown_length_are_refused(settings, instead):
    with pytest.raises(SettingsError, match=f"use schedule.{instead}, a number of steps"):
        Schedule(sgd(1.0), settings, 10)


def test_two_periods_are_one_too_many():
    with pytest.raises(ValueError, match="remove one"):
        ScheduleSettings(name="restarts", period=3, period_epochs=1.0)


@pytest.mark.parametrize(("floor", "end"), [(0.0, 1e-3), (0.1, 1e-2)])
def test_the_larger_of_floor_and_lowest_is_the_end_of_a_cosine(floor, end):
    optimizer = sgd(0.1)
    settings = ScheduleSettings(name="cosine", floor=floor, lowest=1e-3)
    found = [one[0] for one in walk(Schedule(optimizer, settings, 40), optimizer, 39)]
    wanted = torchs(lr_scheduler.CosineAnnealingLR, 39, T_max=40, eta_min=end * 10)
    assert found == pytest.approx([rate / 10 for rate in wanted])


@pytest.mark.parametrize("name", ["linear", "cosine", "restarts", "plateau"])
def test_no_group_goes_below_the_lowest_rate(name):
    optimizer = sgd(0.1, 0.01)
    settings = ScheduleSettings(name=name, period=7, patience=0, lowest=4e-3)
    schedule = Schedule(optimizer, settings, 50)
    found = walk(schedule, optimizer, 50)
    assert all(rate >= 4e-3 * (1 - 1e-12) for both in found for rate in both)
    assert min(rate for _, rate in found) < 6e-3 and found[0] == [0.1, 0.01]
    lower_learning_rates([optimizer], [schedule], 0.5)
    assert all(
        rate >= 4e-3 * (1 - 1e-12) for both in walk(schedule, optimizer, 9)[1:] for rate in both
    )


def test_one_cycle_rises_to_the_rate_that_was_set():
    optimizer = sgd(0.1, 0.01)
    settings = ScheduleSettings(name="onecycle", max_lr=0.5)
    schedule = Schedule(optimizer, settings, 40)
    found = walk(schedule, optimizer, 39)
    options = {"max_lr": 0.5, "total_steps": 40, "cycle_momentum": False}
    wanted = torchs(lr_scheduler.OneCycleLR, 39, **options)
    assert [one for one, _ in found] == pytest.approx(wanted)
    assert [other for _, other in found] == pytest.approx([rate / 10 for rate in wanted])
