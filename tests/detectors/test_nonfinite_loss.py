from __future__ import annotations

import numpy as np
import pytest

from holdfast.detectors import Window
from holdfast.detectors.nonfinite_loss import NonfiniteLoss
from holdfast.types import Severity

NAN, INF = np.nan, np.inf


def only(rows, **known):
    findings = list(NonfiniteLoss().scan(Window(rows=rows, fresh=len(rows), **known)))
    assert len(findings) == 1
    return findings[0]


def none(rows, **known):
    return not list(NonfiniteLoss().scan(Window(rows=rows, fresh=len(rows), **known)))


def test_a_nan_loss_is_reported_with_the_step_and_the_last_good_loss(make_rows):
    rows = make_rows(6, start=407, loss={3: 2.31, 5: NAN}, loss_bad={5: 1}, skipped={5: 1})
    rows["loss"][4] = 2.25
    finding = only(rows)
    assert finding.message == "step 412 skipped: loss is NaN (last finite loss 2.25 at step 411)"
    assert finding.severity is Severity.WARNING
    assert finding.action == "skip_update"
    assert finding.evidence["last_finite_step"] == 411
    assert "print the smallest and largest value" in finding.advice


def test_a_step_that_was_applied_says_so_and_is_an_error(make_rows):
    finding = only(make_rows(3, loss={2: NAN}, loss_bad={2: 1}))
    assert finding.message.startswith("step 2 NOT skipped: loss is NaN")
    assert finding.severity is Severity.ERROR
    assert finding.action == ""


@pytest.mark.parametrize(("value", "word"), [(INF, "inf"), (-INF, "-inf")])
def test_infinity_is_bad_even_without_the_flag_and_advice_differs(make_rows, value, word):
    finding = only(make_rows(3, loss={2: value}))
    assert f"loss is {word} (" in finding.message
    assert "log or division of 0" in finding.advice and "what overflows" in finding.advice


def test_one_bad_loss_of_an_accumulation_window(make_rows):
    finding = only(make_rows(3, loss={2: 1.5}, loss_bad={2: 1}, backwards=4))
    assert "not finite in one of 4 backward passes" in finding.message


def test_an_unmeasured_loss_is_not_bad(make_rows):
    assert none(make_rows(5, loss=NAN))


def test_first_row_has_no_loss_before_it(make_rows):
    assert "no finite loss" in only(make_rows(1, loss=NAN, loss_bad=1)).message


def test_bad_input_or_parameters_explain_it(make_rows):
    bad = {"loss": {2: NAN}, "loss_bad": {2: 1}}
    assert none(make_rows(3, **bad, input_bad={2: 1}))
    assert none(make_rows(3, **bad, param_bad={2: 3}))
    assert none(make_rows(3, **bad, param_bad={1: 3})), "the last check counts until the next"
    assert not none(make_rows(3, **bad, param_bad={0: 3, 1: 0})), "a clean check ends it"


def test_the_last_finite_loss_is_of_the_same_optimizer(make_rows):
    rows = make_rows(4, opt=[0, 1, 0, 1], loss=[1, 50, 2, NAN], loss_bad={3: 1})
    assert only(rows).evidence["last_finite_loss"] == 50
