from __future__ import annotations

import numpy as np
import pytest

from holdfast.detectors import Window
from holdfast.detectors.gradient_explosion import GradientExplosion
from holdfast.records.recovery import RolledBack
from holdfast.types import Severity


def scan(rows, *, batches=None, events=()):
    window = Window(rows=rows, fresh=len(rows), batches=batches or {}, events=events)
    return list(GradientExplosion().scan(window))


def exploding(make_rows, count=1, *, at=40, loss=400.0, norm=900.0, rows=80, **columns):
    steps = range(at, at + count)
    marked = {name: dict.fromkeys(steps, v) for name, v in [("outlier", 3), ("skipped", 1)]}
    values = {"loss": dict.fromkeys(steps, loss), "grad_norm": dict.fromkeys(steps, norm)}
    return make_rows(rows, **marked | values | columns)


def test_a_norm_alone_is_information_at_once(make_rows):
    rows = make_rows(8, outlier={7: 1}, grad_norm={7: 900}, loss={7: 2.0}, skipped={7: 1})
    (finding,) = scan(rows)
    assert finding.severity is Severity.INFO
    assert finding.message == (
        "step 7 skipped: gradient norm 900, 600 times the baseline 1.5 (loss 2, baseline 1)"
    )
    assert finding.evidence["times"] == 600 and finding.evidence["norm_limit"] == 15


def test_a_clipped_step_says_by_how_much(make_rows):
    rows = make_rows(8, outlier={7: 1}, grad_norm={7: 900}, clip={7: 0.01})
    (finding,) = scan(rows)
    assert "clipped by a factor of 0.01" in finding.message


def test_without_a_judged_loss_it_does_not_claim_that_it_is_usual(make_rows):
    rows = make_rows(8, outlier={7: 1}, grad_norm={7: 900}, loss_baseline=np.nan)
    (finding,) = scan(rows)
    assert "(loss 2.066 not judged)" in finding.message


def test_a_batch_unlike_all_others_is_a_warning_that_names_it(make_rows):
    batches = {40: {"step": 40, "indices": [17, 4, 99]}}
    (finding,) = scan(exploding(make_rows), batches=batches)
    assert finding.severity is Severity.WARNING
    assert finding.message == (
        "step 40 skipped: gradient norm 900, 600 times the baseline 1.5 and loss 400, baseline 1: "
        "only here, the loss was back at step 41"
    )
    assert "dataset[17]" in finding.advice and "(4, 99)" in finding.advice
    assert finding.evidence["samples"] == [17, 4, 99]
    assert finding.key == ("OPT002", 0, "batch")


def test_a_batch_is_not_blamed_for_what_other_batches_did_before(make_rows):
    """A learning rate that is too high: spikes with whatever batch."""
    rows = make_rows(
        80,
        outlier={20: 3, 40: 3, 60: 3},
        skipped={20: 1, 40: 1, 60: 1},
        loss={20: 900.0, 40: 400.0, 60: 4000.0},
        grad_norm={20: 900.0, 40: 900.0, 60: 9000.0},
        lr=3.0,
    )
    batches = {step: {"step": step, "indices": [step, 99]} for step in (20, 40, 60)}
    first, second, third = scan(rows, batches=batches)
    for finding in (first, third):
        assert "only here" in finding.message and "for values or labels unlike" in finding.advice
    assert "only here" not in second.message
    assert second.advice == (
        "the loss was as high at step 20 (900): where that batch was another one, the data are "
        "not to blame, lower the learning rate (now 3)"
    )


def test_the_trial_of_a_rollback_is_no_loss_that_came_back(make_rows):
    """The guard tries older weights on the data of the last step: that row has no mark."""
    spiked = {n: 400.0 for n in range(40, 52)}
    high = dict.fromkeys(range(40, 52), 3)
    rows = make_rows(
        60, loss=spiked, grad_norm=dict.fromkeys(high, 900.0), norm_baseline=1.5, loss_baseline=1.0,
        loss_limit=5.0, outlier=high | {52: np.nan}, skipped=dict.fromkeys([*high, 52], 1),
    )  # fmt: skip
    assert not scan(rows)


def test_many_indices_are_cut_in_the_advice(make_rows):
    batches = {40: {"step": 40, "indices": list(range(500))}}
    (finding,) = scan(exploding(make_rows), batches=batches)
    assert "… 500 in all" in finding.advice and len(finding.advice) < 250


def test_without_indices_it_says_so(make_rows):
    for batches in ({40: {"indices": None}}, {40: {"indices": "nonsense"}}):
        (finding,) = scan(exploding(make_rows), batches=batches)
        assert "dataset indices were not recorded" in finding.advice


def test_a_hard_batch_is_information(make_rows):
    (finding,) = scan(exploding(make_rows, loss=40.0, norm=60.0))
    assert finding.severity is Severity.INFO


def test_a_huge_norm_is_enough(make_rows):
    (finding,) = scan(exploding(make_rows, loss=40.0, norm=6000.0))
    assert finding.severity is Severity.WARNING


def test_a_window_of_bad_batches_is_one_finding(make_rows):
    batches = {s: {"step": s, "indices": [s * 2]} for s in range(40, 45)}
    (finding,) = scan(exploding(make_rows, 5), batches=batches)
    assert finding.step == 40
    assert finding.evidence["count"] == finding.evidence["skipped"] == 5
    assert finding.evidence["steps"] == [40, 41, 42, 43, 44]
    assert finding.evidence["samples"] == [80, 82, 84, 86, 88]
    assert "4 more steps up to 44" in finding.message


def test_a_loss_that_stays_up_after_applied_updates_is_another_fault(make_rows):
    rows = exploding(make_rows)
    rows["outlier"][41:44], rows["loss"][41:44] = 2, 300
    assert not scan(rows)


def test_a_high_loss_with_a_usual_norm_is_no_explosion(make_rows):
    assert not scan(make_rows(80, outlier={40: 2}, loss={40: 400}))


def test_a_spike_that_a_rollback_ended_is_reported_by_that(make_rows, make_event):
    done = RolledBack(opt=0, code="OPT001", why="loss", to=32, steps=9, loss=400.0, usual=2.0)
    now, before = (make_event(done.kind, 0, step, **done.to_dict()) for step in (45, 20))
    assert not scan(exploding(make_rows, 5), events=[now])
    assert scan(exploding(make_rows, 5), events=[before])


def test_each_optimizer_has_its_own_spikes(make_rows):
    rows = make_rows(40, opt=[0, 1] * 20)
    rows["step"] //= 2
    # The row after it is of the other optimizer, and tells nothing about this one.
    rows["outlier"][20], rows["loss"][20], rows["grad_norm"][20] = 3, 400, 900
    (finding,) = scan(rows)
    assert finding.evidence["opt"] == 0 and finding.evidence["back_at"] == 11


@pytest.mark.parametrize("mark", [np.nan, np.inf, -1, 0.5, 7])
def test_what_is_no_mark_marks_nothing(make_rows, mark):
    assert not scan(make_rows(20, outlier=mark))


def test_a_loop_that_makes_its_own_data_is_not_told_of_labels_and_records(make_rows):
    (finding,) = scan(exploding(make_rows))
    assert finding.advice == "look at what made the loss of step 40"
