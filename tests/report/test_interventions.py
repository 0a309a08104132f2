"""What was done beyond the skip of bad steps stands in the first line, with how to forbid it."""

from __future__ import annotations

from holdfast.records.recovery import ClippingSwitched, RolledBack
from holdfast.report import end_summary
from holdfast.report.summary import summarize

BACK = RolledBack(
    opt=0, code="OPT003", why="loss", loss=61.0, usual=2.3, to=3, steps=8, lr_factor=0.5
)


def first_sentence(run) -> str:
    return " ".join(end_summary(run).split()).split(". ")[0]


def test_rollbacks_with_a_lower_rate(make_run, make_event):
    events = [make_event(BACK.kind, 0, step, **BACK.to_dict()) for step in (5, 12)]
    assert first_sentence(make_run(events=events)) == (
        "holdfast: finished after 20 steps; rolled back 2 times, learning rate × 0.25 "
        "(off: --on OPT003=observe)"
    )


def test_finite_steps_that_were_skipped_or_clipped(make_run, make_rows, make_event):
    rows = make_rows(20, outlier={4: 3, 5: 1}, skipped={4: 1, 5: 1})
    clipping = ClippingSwitched(opt=0, on=True, limit=1.0, why="an explosion")
    run = make_run(rows, events=[make_event(clipping.kind, 0, 6, **clipping.to_dict())])
    assert summarize(run).interventions == (
        "skipped 2 steps with exploding gradients, clipped gradients for a while "
        "(off: --on OPT002=observe)"
    )


def test_the_skip_of_a_bad_step_is_no_intervention(make_run, make_rows):
    run = make_run(make_rows(20, skipped={4: 1}, loss_bad={4: 1}))
    assert summarize(run).interventions == ""
