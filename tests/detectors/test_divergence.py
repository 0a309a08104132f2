from __future__ import annotations

import numpy as np
import pytest

from holdfast.detectors import HISTORY, Window
from holdfast.detectors.divergence import Divergence
from holdfast.records.recovery import NewLossLevel, RolledBack, RunStopped
from holdfast.types import Severity

NAN = np.nan


def scan(rows, events=()):
    return list(Divergence().scan(Window(rows=rows, fresh=len(rows), events=events)))


def growing(make_rows, factor, norm=None, *, calm=100, count=80, **columns):
    """A calm run, then growth of the baselines by a factor per step for ``count`` steps."""
    rise = np.r_[np.zeros(calm), np.arange(1, count + 1)]
    columns = {"loss_baseline": factor**rise} | columns
    grads = (factor if norm is None else norm) ** rise
    return make_rows(calm + count, start=12, norm_baseline=grads, **columns)


def test_growth_that_no_batch_explains(make_rows):
    finding = scan(growing(make_rows, 1.1, lr=0.09))[-1]
    assert finding.severity is Severity.ERROR
    assert finding.evidence["how"] == "trend"
    assert finding.evidence["suggested_lr"] == pytest.approx(0.03)
    assert "loss 1 -> 2048 and gradient norm 1 -> 2048, growing over 81 steps since step 111" in (
        finding.message
    )


def test_the_rate_from_before_is_suggested_where_it_was_rising(make_rows):
    lr = np.full(180, 0.01)
    lr[100:] = 0.01 * 1.03 ** np.arange(80)
    finding = scan(growing(make_rows, 1.1, lr=lr))[-1]
    assert finding.evidence["suggested_lr"] == pytest.approx(0.01, rel=0.01)
    assert "to 0.01 " in finding.advice


@pytest.mark.parametrize(
    ("factor", "norm"),
    [(1.05, 1.1), (1.1, 1.0), (1.0, 1.1), (1.1, 1.03)],
    ids=["slow", "steady norms", "norms alone", "norms slow"],
)
def test_growth_that_is_none(make_rows, factor, norm):
    assert not scan(growing(make_rows, factor, norm))


def test_growth_back_and_forth_counts_when_it_is_far(make_rows):
    rows = make_rows(600)
    up = np.linspace(0, 3, 600) + 0.4 * np.sin(np.arange(600) / 9)
    rows["loss"] = rows["loss_baseline"] = 10**up
    rows["grad_norm"] = rows["norm_baseline"] = 10 ** (up * 0.8)
    rows["loss_limit"] = rows["loss_baseline"] * 5
    found = scan(rows)
    assert found and found[0].severity is Severity.ERROR
    assert 300 < found[0].step < 550
    rows["norm_baseline"] = 1.5
    assert not scan(rows)


def test_without_a_known_scale_nothing_is_said_of_a_trend(make_rows):
    assert not scan(growing(make_rows, 1.1, loss_baseline=NAN))


def rollback(make_event, step, code="OPT003", **data):
    done = RolledBack(
        opt=0, to=80, steps=step - 80, why="loss", loss=290.8, usual=0.0137, tried=0.03,
        lr_factor=0.5, left=2, code=code,
    ).replace(**data)  # fmt: skip
    return make_event(done.kind, 0, step, **done.to_dict())


def stopped(make_event, code, why=""):
    stop = RunStopped(code=code, why=why)
    return make_event(stop.kind, 0, 199, **stop.to_dict())


def test_a_rollback_soon_after_another(make_rows, make_event):
    events = [rollback(make_event, 140, "OPT001"), rollback(make_event, 165)]
    (finding,) = scan(make_rows(200, lr=0.08), events)
    assert finding.severity is Severity.ERROR and finding.action == "rollback"
    assert finding.message == (
        "step 165: rolled back 85 steps to step 80, learning rate times 0.5: loss 0.0137 -> 290.8 "
        "again after a rollback"
    )
    assert "(now 0.08) to 0.04 " in finding.advice
    assert finding.evidence["how"] == "again"


def test_a_rollback_out_of_slow_growth(make_rows, make_event):
    (finding,) = scan(make_rows(200), [rollback(make_event, 165, lr_factor=1.0)])
    assert finding.evidence["how"] == "trend"
    assert finding.message.endswith("loss 0.0137 -> 290.8 over many steps")
    assert "times" not in finding.message


def test_the_end_of_patience(make_rows, make_event):
    (finding,) = scan(make_rows(200), [stopped(make_event, "OPT003", "budget of 3 spent")])
    assert finding.action == "stop" and "budget of 3 spent" in finding.message
    assert finding.advice.startswith("resume from the last good checkpoint and lower the learning")


def test_a_stop_because_of_something_else_is_not_ours(make_rows, make_event):
    assert not scan(make_rows(200), [stopped(make_event, "NUM001")])


def test_a_long_run_is_silent(make_rows):
    assert not scan(make_rows(2 * HISTORY))


def test_growth_of_a_loop_that_makes_its_own_data_is_a_warning(make_rows, make_event):
    why = "this loop makes its own data: its batches come from no DataLoader"
    events = [make_event("comparable", 0, 12, holds=False, why=why)]
    finding = scan(growing(make_rows, 1.1), events)[-1]
    assert finding.severity is Severity.WARNING
    assert finding.message.endswith(f"; nothing was done, because {why}")
    assert "--on OPT003=rollback,lower_lr" in finding.advice
    events += [make_event("comparable", 0, 100, holds=True, why="")]
    assert scan(growing(make_rows, 1.1), events)[-1].severity is Severity.ERROR


def test_growth_is_measured_from_a_level_that_the_loss_jumped_to(make_rows, make_event):
    # The next stage of a curriculum: a thousandfold loss at once, which falls from there.
    stage = np.r_[np.ones(100), 1000 * 0.97 ** np.arange(80)]
    rows = make_rows(180, start=12, loss_baseline=stage, norm_baseline=stage)
    record = NewLossLevel(opt=0, before=1.0, after=1000.0)
    level = make_event(record.kind, 0, 112, **record.to_dict())
    assert scan(rows)
    assert not scan(rows, [level])
    grown = np.r_[np.ones(100), 1000 * 1.1 ** np.arange(80)]
    rows = make_rows(180, start=12, loss_baseline=grown, norm_baseline=grown)
    assert scan(rows, [level])[-1].evidence["loss_before"] == pytest.approx(1000, rel=0.3)


def test_what_is_not_finite_did_not_grow(make_rows, make_event):
    data = {"why": "nonfinite", "first": 40, "loss": NAN, "usual": 2.0, "tried": 2.1}
    rows, event = make_rows(60), rollback(make_event, 46, **data)
    (finding,) = Divergence().scan(Window(rows=rows, fresh=len(rows), events=[event]))
    assert "loss or gradients were not finite from step 40 on" in finding.message
    assert "->" not in finding.message and "names its line" in finding.advice
