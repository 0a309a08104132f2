from __future__ import annotations

import numpy as np

from holdfast.detectors import Window
from holdfast.detectors.nonfinite_parameter import NonfiniteParameter
from holdfast.types import Severity

NAN = np.nan
LAYERS = {0: ["a.weight", "b.weight"]}


def scan(rows):
    return list(NonfiniteParameter().scan(Window(rows=rows, fresh=len(rows), layers=LAYERS)))


def test_at_the_start(make_rows):
    rows = make_rows(1, param_bad=1, param_layer=1, loss=NAN, loss_bad=1, grad_bad=2, skipped=1)
    (finding,) = scan(rows)
    assert finding.message == (
        "step 0 skipped: parameter b.weight is NaN or inf, 1 of 2 parameter tensors in all "
        "(on the first step, before any update)"
    )
    assert finding.evidence["origin"] == "start"
    assert finding.severity is Severity.ERROR, "leaving out the step does not repair the weight"
    assert "initialise" in finding.advice


def test_poisoned_by_an_update_that_was_applied(make_rows):
    rows = make_rows(
        7, start=126, loss={4: NAN, 5: NAN}, loss_bad={4: 1, 5: 1}, param_bad={5: 2, 6: NAN}
    )
    rows["param_layer"][5] = 0
    (finding,) = scan(rows)
    assert finding.step == 131
    assert finding.evidence["origin"] == "update"
    assert finding.evidence["clean_step"] == 128
    assert finding.evidence["update_step"] == 130
    assert "before step 130" in finding.advice


def test_bad_steps_that_were_left_out_cannot_have_poisoned_it(make_rows):
    bad = {3: 1, 4: 1}
    rows = make_rows(
        6, loss_bad=bad, loss={3: NAN, 4: NAN}, skipped=bad, param_bad={4: 1}, param_layer={4: 0}
    )
    (finding,) = scan(rows)
    assert finding.evidence["origin"] == "outside"
    assert finding.evidence["clean_step"] == 0


def test_steps_between_two_checks_are_counted_while_they_suffer(make_rows):
    rows = make_rows(5, param_bad={1: 1}, loss_bad={2: 1, 4: 1}, loss={2: NAN, 4: NAN})
    assert [f.step for f in scan(rows)] == [1, 2, 4]


def test_another_optimizer_is_not_blamed(make_rows):
    rows = make_rows(4, opt=[0, 1, 0, 1], param_bad={2: 1}, loss={3: NAN}, loss_bad={3: 1})
    assert [(f.step, f.evidence["opt"]) for f in scan(rows)] == [(2, 0)]


def test_bad_input_explains_it(make_rows):
    assert not scan(make_rows(3, param_bad={2: 1}, input_bad={2: 1}, loss_bad={2: 1}))


def test_never_seen_clean_when_checks_began_late(make_rows):
    rows = make_rows(3, start=1, param_bad={2: 1})
    (finding,) = scan(rows)
    assert finding.evidence["origin"] == "outside" and "never seen clean" in finding.message
