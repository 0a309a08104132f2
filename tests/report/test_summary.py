from __future__ import annotations

import math

import numpy as np
import pytest

from holdfast.report import plain, summarize
from holdfast.report.html.card import card
from holdfast.report.text import end_lines, report_lines
from holdfast.report.verdict import verdict_of
from holdfast.run import Run

NAN = np.nan
POISON = {"loss": {5: NAN}, "loss_bad": {5: 1}, "skipped": {5: 1}}


def test_a_healthy_run(make_run, make_rows):
    summary = summarize(make_run(make_rows(50, loss=np.linspace(4, 2, 50))))
    assert summary.outcome == "finished"
    assert summary.findings == ()
    assert (summary.steps, summary.skipped) == (50, 0)
    assert (summary.first_loss, summary.last_loss) == pytest.approx((4.0, 2.0), rel=0.02)
    assert summary.guard_cost == pytest.approx(0.005, rel=0.01), "50 µs of 10 ms"
    assert summary.facts["command"] == "train.py --epochs 3"
    assert summary.lanes[0].phases["forward"] == pytest.approx(0.003)
    assert summary.lanes[0].ended
    assert summary.files[0] >= 2


def test_findings_and_skips(make_run, make_rows):
    summary = summarize(make_run(make_rows(20, **POISON)))
    assert [f.code for f in summary.findings] == ["NUM001"]
    assert summary.skipped == 1


def test_a_run_that_skips_nearly_all_of_its_steps_does_not_train(make_run, make_rows):
    """It is the first thing to say: in the verdict, the text and the summary at the end."""
    bad = {step: 1 for step in range(3, 50)}
    run = make_run(make_rows(50, loss=dict.fromkeys(bad, NAN), loss_bad=bad, skipped=bad))
    summary = summarize(run)
    reported = "he training does not go on: 47 of 50 steps skipped"
    assert summary.stands_still and verdict_of(summary).word == "Not training"
    assert verdict_of(summary).tone == "bad" and reported in verdict_of(summary).sentence
    assert "went on" not in verdict_of(summary).sentence
    for lines in (end_lines(summary), report_lines(summary)):
        assert reported in " ".join(plain(lines).split())
    assert reported in card(summary)


def test_some_skipped_steps_leave_a_training_that_goes_on(make_run, make_rows):
    bad = {step: 1 for step in range(3, 28)}
    summary = summarize(make_run(make_rows(50, loss_bad=bad, skipped=bad)))
    assert not summary.stands_still and summary.skipped_steps == "25 steps skipped"


@pytest.mark.parametrize(
    ("exit_code", "word", "text"),
    [
        (0, "finished", "finished"),
        (None, "finished", "finished"),
        (3, "failed", "exit code 3"),
        (-9, "killed", "SIGKILL, perhaps out of host memory"),
        (-15, "killed", "SIGTERM"),
        (137, "killed", "SIGKILL"),
        (-2, "interrupted", "keyboard"),
        (130, "interrupted", "keyboard"),
        (-63, "killed", "signal 63"),
        ("odd", "failed", "odd"),
    ],
)
def test_how_it_ended(make_run, exit_code, word, text):
    summary = summarize(make_run(exit_code=exit_code))
    assert summary.outcome == word
    assert text in summary.ending.line


def test_the_exception_that_ended_it(make_run, make_event):
    data = {"type": "ValueError", "message": "bad shape\nmore", "file": "train.py", "line": 57}
    summary = summarize(make_run(exit_code=1, events=[make_event("exception", 0, 9, **data)]))
    assert summary.ending.line == "crashed with ValueError: bad shape at train.py:57"
    assert summary.exception is not None and summary.exception["line"] == 57


def test_a_run_that_was_never_closed_is_judged_from_its_rows(make_run, make_rows):
    run = make_run(make_rows(20, **POISON), finished=False, end=False)
    for path in run.path.glob("findings*"):
        path.unlink()
    summary = summarize(Run.open(run.path))
    assert summary.outcome == "unfinished"
    assert [f.code for f in summary.findings] == ["NUM001"]
    assert not summary.lanes[0].ended


def test_recorded_counts_beat_those_of_rows_that_were_thinned(make_run, make_rows):
    bad = dict.fromkeys(range(4, 12), 1)
    run = make_run(make_rows(20, loss_bad=bad), finished=False)
    for path in run.path.glob("steps*"):
        path.unlink()
    assert summarize(run).findings[0].evidence["count"] == 8


def test_ranks_that_see_the_same_are_reported_once(make_run, make_rows, record_lane):
    rows = make_rows(20, **POISON)
    run = make_run(rows)
    record_lane(run, rows, lane="r1")
    summary = summarize(run)
    (group,) = summary.finding_groups
    assert group.ranks == (0, 1)
    assert summary.skipped == 1, "ranks skip the same step together"
    assert summary.steps == 20


def test_a_restart_of_a_rank_adds_up(make_run, make_rows, record_lane):
    run = make_run(make_rows(20, **POISON))
    record_lane(run, make_rows(20, **POISON), lane="r0-p77")
    summary = summarize(run)
    assert (summary.steps, summary.skipped, len(summary.finding_groups)) == (40, 2, 2)


def test_steps_done_again_after_a_resume_count_once(make_run, make_rows, record_lane, make_event):
    """Killed at 17, resumed at 12, ended at 24: 24 and not 29, with the loss of step 24."""
    run = make_run(make_rows(17, loss={0: 9.0}))
    again = make_rows(12, start=12, loss={11: 0.5})
    again["time"] += 1000
    record_lane(run, again, events=[make_event("resume", 0, 12)], lane="r0-p77")
    summary = summarize(run)
    assert (summary.steps, summary.first_loss, summary.last_loss) == (24, 9.0, 0.5)


def test_bad_gradients_that_came_by_all_reduce_are_an_echo(make_run, make_rows, record_lane):
    run = make_run(make_rows(20, grad_bad={5: 2}, skipped={5: 1}))
    record_lane(run, make_rows(20, grad_bad={5: 2}, **POISON), lane="r1")
    record_lane(run, make_rows(20, grad_bad={5: 2, 9: 1}, skipped={5: 1}), lane="r2")
    own, cause = summarize(run).finding_groups
    assert (own.finding.code, own.ranks) == ("NUM002", (2,)), "step 9 was nobody else's fault"
    assert (cause.finding.code, cause.ranks, cause.consequences) == (
        "NUM001",
        (1,),
        (("NUM002", 0),),
    )


def test_notes_from_events(make_run, make_event):
    events = [
        make_event("not_covered", 0, 0, what="skipping a bad step", why="LBFGS"),
        make_event("not_covered", 0, 1, what="skipping a bad step", why="LBFGS"),
        make_event("holdfast_error", 0, 3, where="loss probe", error="KeyError: 1"),
        make_event("switched_to_fused", 0, 0, opt=0, cls="Adam"),
        make_event("dropped", 0, 3, records=5),
        make_event("dropped", 0, 4, records=9),
        make_event("dropped", 0, 4, readings=2),
    ]
    summary = summarize(make_run(events=events))
    assert summary.not_covered == ("skipping a bad step: LBFGS",)
    assert summary.errors == ("loss probe: KeyError: 1",)
    assert any("fused kernel" in change for change in summary.changes)
    assert summary.dropped == 11


def test_an_empty_run(tmp_path):
    summary = summarize(Run.create(tmp_path / "run", {}))
    assert (summary.steps, summary.skipped, summary.lanes) == (0, 0, ())
    assert math.isnan(summary.guard_cost) and math.isnan(summary.first_loss)


def test_columns_that_were_never_recorded(make_run, make_rows):
    summary = summarize(make_run(make_rows(5)[["step", "time", "loss", "skipped"]]))
    assert summary.steps == 5
    assert math.isnan(summary.guard_cost)


def test_two_optimizers_have_one_loss_curve(make_run, make_rows):
    rows = make_rows(6, opt=[0, 1] * 3, loss=[5, 70, 4, 80, 3, 90])
    rows["step"] //= 2
    summary = summarize(make_run(rows))
    assert (summary.steps, summary.first_loss, summary.last_loss) == (3, 5, 3)


@pytest.mark.parametrize(
    "line",
    [
        '{"code":"X","name":"x","severity":"error","step":"one","message":"m","advice":"a"}',
        '{"code":"X","name":"x","severity":"error","step":1,"message":1,"advice":"a"}',
        '{"code":"X","name":"x","severity":"error","step":1,"message":"m","advice":"a",'
        '"evidence":[1]}',
    ],
)
def test_findings_that_make_no_sense_are_counted_not_trusted(make_run, line):
    run = make_run()
    with run.stream_path("findings", "r0").open("a") as file:
        file.write(line + "\n")
    summary = summarize(run)
    assert summary.findings == ()
    assert summary.lanes[0].corrupt == 1


@pytest.mark.parametrize("line", ['{"time":0,"rank":0,"step":1,"kind":"end","data":7}'])
def test_events_that_make_no_sense_are_counted_not_trusted(make_run, line):
    run = make_run()
    with run.stream_path("events", "r0").open("a") as file:
        file.write(line + "\n")
    assert summarize(run).lanes[0].corrupt == 1


def test_a_run_that_ends_with_nan_is_not_told_a_finite_loss(make_run, make_rows):
    rows = make_rows(20, loss={0: 4.0, 17: 0.5, 18: NAN, 19: NAN}, loss_bad={18: 1, 19: 1})
    summary = summarize(make_run(rows))
    assert math.isnan(summary.last_loss)
    assert summary.loss_change == "loss 4 → NaN (last finite: 0.5 at step 17)"
    rows = make_rows(20, loss={0: 4.0, 18: NAN, 19: 0.25}, loss_bad={18: 1})
    assert summarize(make_run(rows, name="well")).loss_change == "loss 4 → 0.25"
    rows = make_rows(20, loss=NAN, loss_bad=1)
    assert summarize(make_run(rows, name="bad")).loss_change == "loss NaN from the first step on"
    rows = make_rows(20, loss=NAN)
    assert summarize(make_run(rows, name="none")).loss_change == "", "never recorded"


def test_a_run_that_was_resumed_from_another_tells_its_own_part(make_run, make_rows, make_event):
    rows = make_rows(99, start=101, loss=np.r_[np.full(50, 2.5), np.full(49, 0.5)])
    run = make_run(rows, events=[make_event("resume", 0, 101, step=101, exact=True)])
    summary = summarize(run)
    assert (summary.steps, summary.before) == (200, 101)
    assert summary.length == "200 steps (99 since it was resumed)"
    assert summary.loss_change == "loss 2.5 → 0.5 (medians of 4 steps)"


def test_the_time_of_restarts_adds_up(make_run, make_rows, record_lane, make_event):
    run = make_run(make_rows(18))
    record_lane(run, make_rows(13, start=12), events=[make_event("resume", 0, 12)], lane="r0-p77")
    summary = summarize(run)
    assert summary.seconds == pytest.approx(0.17 + 0.12)
    assert (summary.before, summary.length) == (0, "25 steps")


def test_the_command_is_the_line_that_was_typed(make_run):
    meta = {"command": ["train.py", "--name", "a b"], "started_by": "holdfast run"}
    run = make_run(name="typed", meta=meta)
    assert summarize(run).facts["command"] == "holdfast run train.py --name 'a b'"


def test_how_the_loss_moved_is_reported_by_medians(make_run, make_rows):
    rows = make_rows(400, loss=np.r_[np.full(200, 1.0), np.full(200, 0.3)])
    rows["loss"][[0, 399]] = 0.7, 0.54  # one batch is a matter of chance
    assert summarize(make_run(rows)).loss_change == "loss 1 → 0.3 (medians of 20 steps)"
