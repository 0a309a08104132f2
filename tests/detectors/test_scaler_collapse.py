from __future__ import annotations

import numpy as np

from holdfast.detectors import Window
from holdfast.detectors.scaler_collapse import ScalerCollapse
from holdfast.types import Severity

NAN = np.nan


def scan(rows, detector=None):
    detector = detector or ScalerCollapse()
    return list(detector.scan(Window(rows=rows, fresh=len(rows), layers={0: ["wide.weight"]})))


def overflowing(make_rows, count, *, good=0, first=65536.0, **columns):
    """``good`` clean steps, then ``count`` that overflow and halve the scale."""
    total = good + count
    bad = np.arange(total) >= good
    scale = np.where(bad, first * 0.5 ** np.maximum(np.arange(total) - good, 0), first)
    columns = {"grad_bad": bad, "grad_layer": np.where(bad, 0, -1), "scaler_skipped": bad} | columns
    return make_rows(total, scale=scale, **columns)


def test_a_normal_start_is_silent(make_rows):
    assert not scan(overflowing(make_rows, 5))
    assert not scan(overflowing(make_rows, 11, good=3))


def test_twelve_in_a_row_are_too_many(make_rows):
    (finding,) = scan(overflowing(make_rows, 12, good=3))
    assert finding.message == (
        "step 14 skipped by GradScaler: no scale is low enough so far: 32 now, "
        "65536 before (12 steps in a row overflowed since step 3)"
    )
    assert finding.severity is Severity.WARNING
    assert finding.evidence["streak"] == 12
    assert "wide.weight" in finding.advice


def test_a_scale_that_began_high_takes_longer_to_find(make_rows):
    assert not scan(overflowing(make_rows, 20, first=2.0**31))
    (finding, *_) = scan(overflowing(make_rows, 30, first=2.0**31))
    assert finding.evidence["scale"] == 2048


def test_a_scale_below_one_is_an_error_at_once(make_rows):
    findings = scan(overflowing(make_rows, 3, good=1, first=1.0))
    assert [f.step for f in findings] == [2, 3]
    assert findings[0].severity is Severity.ERROR


def test_a_low_scale_chosen_by_hand_that_never_fell_is_left_alone(make_rows):
    assert not scan(make_rows(50, scale=0.5))


def test_a_scale_that_fell_below_one_and_stays_there(make_rows):
    findings = scan(make_rows(4, scale=[2.0, 1.0, 0.5, 0.5]))
    assert [f.step for f in findings] == [2, 3]


def test_a_nan_loss_explains_it(make_rows):
    assert not scan(overflowing(make_rows, 40, loss=NAN, loss_bad=1))


def test_bad_weights_explain_it(make_rows):
    assert not scan(overflowing(make_rows, 40, param_bad={0: 1}))


def test_an_overflow_every_growth_interval_is_ordinary(make_rows):
    rows = make_rows(30, scale=[65536.0, 131072.0] * 15, scaler_skipped=[0, 1] * 15)
    assert not scan(rows)
    # The same after thinning has taken the good rows away: the scale rises in between.
    scale = np.tile([131072.0, 65536.0 * 1.5], 15)
    assert not scan(make_rows(30, scale=scale, scaler_skipped=1))


def test_without_a_scaler_there_is_nothing_to_say(make_rows):
    assert not scan(make_rows(30, grad_bad=1))


def test_each_optimizer_has_its_own_streak(make_rows):
    rows = make_rows(20, opt=[0, 1] * 10, scale=64.0, scaler_skipped=1)
    assert not scan(rows)
    rows = make_rows(24, opt=[0, 1] * 12, scale=64.0, scaler_skipped=[1, 0] * 12)
    assert [f.evidence["opt"] for f in scan(rows)] == [0]


def test_options_move_the_thresholds(make_rows):
    detector = ScalerCollapse(ScalerCollapse.Options(streak=3, ordinary=65536.0))
    assert len(scan(overflowing(make_rows, 5), detector)) == 3
