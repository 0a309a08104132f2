from __future__ import annotations

import numpy as np
import pytest

from holdfast.detectors import HISTORY, Window
from holdfast.detectors.judge import Judge
from holdfast.detectors.loss_spike import LossSpike
from holdfast.records.recovery import (
    NewLossLevel,
    OnlyObserved,
    RolledBack,
    RunStopped,
    TrialResult,
)
from holdfast.types import Severity

NAN = np.nan


def scan(rows, events=()):
    return list(LossSpike().scan(Window(rows=rows, fresh=len(rows), events=events)))


def spiking(make_rows, losses, *, at=40, count=80, marks=2, **columns):
    """Rows around 2 with some losses far above the limit of 10, one after the other."""
    high = {at + i: loss for i, loss in enumerate(losses)}
    return make_rows(count, loss=high, outlier=dict.fromkeys(high, marks), **columns)


def test_three_steps_far_above_that_come_back_are_information(make_rows):
    (finding,) = scan(spiking(make_rows, [60.0, 50.0, 40.0]))
    assert finding.severity is Severity.INFO
    assert finding.step == 43
    assert "after 3 steps up to 60, baseline 1 (since step 40)" in finding.message
    assert finding.evidence["spike_start"] == 40 and finding.evidence["limit"] == 10


def test_two_steps_are_not_enough(make_rows):
    assert not scan(spiking(make_rows, [60.0, 50.0]))


def test_steps_that_were_left_out_did_not_hurt_the_weights(make_rows):
    skipped = dict.fromkeys(range(40, 45), 1)
    assert not scan(spiking(make_rows, [60.0] * 5, marks=3, skipped=skipped))


def test_a_nan_in_the_middle_does_not_end_a_spike(make_rows):
    rows = spiking(make_rows, [60.0, 50.0, 40.0, 30.0])
    rows["loss"][42], rows["loss_bad"][42], rows["outlier"][42] = NAN, 1, 0
    (finding,) = scan(rows)
    assert finding.evidence["spike_rows"] == 3


def test_a_loss_that_is_usual_only_by_a_new_measure_has_not_come_back(make_rows):
    rows = spiking(make_rows, [60.0] * 10)
    rows["loss"][50:], rows["loss_limit"][50:] = 60, 200
    assert not scan(rows)


def rollback(make_event, step, **data):
    done = RolledBack(
        opt=0, to=32, steps=step - 32, why="loss", loss=61.0, usual=2.31, tried=2.2, first=40,
        ms=3.0, code="OPT001", left=2,
    ).replace(**data)  # fmt: skip
    return of(make_event, done, step)


def of(make_event, record, step=46):
    return make_event(record.kind, 0, step, **record.to_dict())


def level(make_event, before, after, step=46):
    return of(make_event, NewLossLevel(opt=0, before=before, after=after), step)


def test_a_rollback_is_an_error_and_tells_what_was_done(make_rows, make_event):
    (finding,) = scan(spiking(make_rows, [61.0] * 6), [rollback(make_event, 46)])
    assert finding.severity is Severity.ERROR
    assert finding.action == "rollback"
    assert finding.message == (
        "step 46: rolled back 14 steps to step 32: loss 2.31 -> 61 since step 40, and the old "
        "weights do better"
    )
    assert finding.evidence["left"] == 2 and finding.evidence["spike_start"] == 40


def test_a_rollback_because_of_something_else_is_not_ours(make_rows, make_event):
    rows = spiking(make_rows, [61.0] * 6)
    assert not scan(rows, [rollback(make_event, 46, code="OPT003")])


def test_an_event_of_another_optimizer_belongs_to_its_rows(make_rows, make_event):
    rows = make_rows(40, opt=[0, 1] * 20)
    rows["step"] //= 2
    (finding,) = scan(rows, [rollback(make_event, 7, opt=1)])
    assert finding.step == 7 and finding.evidence["opt"] == 1


def test_an_event_between_two_rows_belongs_to_the_later_one(make_rows, make_event):
    rows = make_rows(20)
    rows["step"] *= 10
    (finding,) = scan(rows, [rollback(make_event, 43)])
    assert finding.step == 50


def test_an_event_whose_row_is_forgotten_is_not_told_again(make_rows, make_event):
    rows = make_rows(HISTORY + 100)
    assert [f.step for f in scan(rows, [rollback(make_event, 5)])] == [5]


def test_a_change_of_the_data_is_information(make_rows, make_event):
    reported = [
        of(make_event, TrialResult(opt=0, verdict="data", loss=61.0, usual=2.31, tried=58.0)),
        level(make_event, 2.31, 61.0),
    ]
    (finding,) = scan(make_rows(80), reported)
    assert finding.severity is Severity.INFO
    assert "new level: 61, 2.31 before (the weights from before have 58 there too)" in (
        finding.message
    )


@pytest.mark.parametrize(
    ("usual", "loss", "tried", "verdict"),
    [
        (NAN, NAN, NAN, "data"),
        (0.009687, 0.00516, 0.005108, "data"),  # it fell
        (2.31, 61.0, NAN, "data"),
        (2.31, 61.0, 58.0, "nonfinite"),
    ],
)
def test_no_level_is_reported_of_nan_or_of_a_loss_that_fell(
    make_rows, make_event, usual, loss, tried, verdict
):
    trial = TrialResult(opt=0, verdict=verdict, usual=usual, loss=loss, tried=tried)
    reported = [
        of(make_event, trial),
        level(make_event, NAN, 3.0, 60),
        level(make_event, 3.0, np.inf, 70),
    ]
    assert not scan(make_rows(80), reported)


def test_a_level_learned_anew_is_reported_when_it_is_higher(make_rows, make_event):
    (finding,) = scan(make_rows(80), [level(make_event, 2.0, 9.0)])
    assert finding.severity is Severity.INFO and finding.evidence["after"] == 9
    assert not scan(make_rows(80), [level(make_event, 2.0, 1.0)])


def test_the_end_of_patience_is_an_error_that_names_the_checkpoint(make_rows, make_event):
    why = "3 rollbacks within 1000 steps"
    stop = RunStopped(code="OPT001", why=why, checkpoint="good.st")
    (finding,) = scan(make_rows(50), [of(make_event, stop, 49)])
    assert finding.severity is Severity.ERROR and finding.action == "stop"
    assert why in finding.message and "good.st" in finding.advice


@pytest.mark.parametrize("size", [1, 7, 500])
def test_how_rows_are_delivered_changes_nothing(make_rows, make_event, size):
    rows = spiking(make_rows, [61.0] * 5, count=300)
    rows["loss"][200:206], rows["outlier"][200:206] = 61, 2
    event = rollback(make_event, 206)
    whole, parts = Judge([LossSpike]), Judge([LossSpike])
    whole.feed(rows, [event])
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        parts.feed(part, [event] if event.step in part["step"] else [])
    assert parts.findings == whole.findings
    reported = [(f.severity, f.step, f.action) for f in whole.findings]
    assert reported == [(Severity.ERROR, 206, "rollback"), (Severity.INFO, 45, "")]


WHY = "this loop makes its own data: its batches come from no DataLoader"


def observed(make_event, loss=61.0):
    seen = OnlyObserved(opt=0, code="OPT001", first=40, loss=loss, usual=2.31, why=WHY)
    return of(make_event, seen)


def test_a_rise_that_was_only_observed_is_information_and_says_why(make_rows, make_event):
    rows = spiking(make_rows, [61.0] * 24)
    (finding,) = scan(rows, [observed(make_event), level(make_event, 2.31, 61.0, 60)])
    assert finding.severity is Severity.INFO
    assert finding.message == (
        "step 46: the loss is far above its baseline since step 40: 2.31 -> 61; nothing was done, "
        f"because {WHY}"
    )
    assert "--on OPT001=rollback" in finding.advice
    assert finding.action != "rollback"


def test_a_rise_beyond_anything_seen_before_is_a_warning(make_rows, make_event):
    rows = spiking(make_rows, [6.1e4] * 24)
    (finding,) = scan(rows, [observed(make_event, loss=6.1e4)])
    assert finding.severity is Severity.WARNING


def test_a_rate_that_is_still_rising_is_named_and_no_longer_warm_up_advised(make_rows):
    rising = {step: 1e-3 * (step + 1) for step in range(80)}
    (finding,) = scan(spiking(make_rows, [60.0, 50.0, 40.0], lr=rising))
    assert "still rising (0.001 at step 0, 0.041 at step 40)" in finding.advice
    assert "warm-up" not in scan(spiking(make_rows, [60.0, 50.0, 40.0]))[0].advice


def test_steps_that_were_not_finite_are_not_blamed_on_the_learning_rate(make_rows, make_event):
    rows = make_rows(60)
    (finding,) = scan(rows, [rollback(make_event, 50, why="nonfinite", loss=NAN)])
    assert finding.advice.startswith("mend what NUM001 or NUM002 names as their cause")
    assert "old weights do better" not in finding.message
