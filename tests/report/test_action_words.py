from __future__ import annotations

import json

import pytest
from tests.memory_events import LOST, SPLIT

from holdfast.policy import Policy
from holdfast.records.recovery import (
    ClippingSwitched,
    LoweredRate,
    NewLossLevel,
    RolledBack,
    RunStopped,
    SnapshotTotals,
    TrialResult,
)
from holdfast.records.resuming import CheckpointResult, Resumed
from holdfast.report import (
    end_summary,
    read_record,
    report_html,
    report_json,
    report_md,
    summarize,
)
from holdfast.report.action_words import KINDS, rescue_of
from holdfast.report.first_layer import stories
from holdfast.report.layout import plain
from holdfast.report.live import Live, event_line
from holdfast.report.terminal import Terminal
from holdfast.report.text import report_lines
from holdfast.run import Run
from holdfast.types import Event, Finding, Severity

BACK = RolledBack(
    opt=0, to=969, steps=8, why="loss", loss=61.0, usual=2.31, ms=12.5, code="OPT001", left=2
).to_dict()
TRIAL = TrialResult(opt=0, verdict="weights", loss=61.0, usual=2.31, tried=2.4).to_dict()
FAILED = CheckpointResult(why="time", failed="No space left on device").to_dict()
# One event of every kind, and what a report has to say about it.
EVENTS = {
    "rollback": (BACK, "Rolled back 8 steps [OPT001]", "loss 2.31 → 61"),
    "trial": (
        TRIAL,
        "Kept the rollback",
        "with the older weights the loss is 2.4",
    ),
    "level": (
        NewLossLevel(opt=0, before=2.0, after=5.5).to_dict(),
        "Reset the loss baseline",
        "2 → 5.5",
    ),
    "batch_split": (
        SPLIT.replace(samples=2048, seconds=0.25, first=False).to_dict(),
        "Split batches of 2,048 samples into 4 parts [MEM008]",
        "out of memory in forward, exact, 250 ms lost",
    ),
    "lost_step": (
        LOST.replace(batches=1).to_dict(),
        "Skipped a step that ran out of memory in backward [MEM008]",
        "its batch is handed out again",
    ),
    "new_task": ({}, "Forgot its baselines", "it was told that a new task begins"),
    "clipping": (
        ClippingSwitched(opt=0, on=True, limit=3.25, why="after an explosion").to_dict(),
        "Began to clip gradients at a norm of 3.25",
        "after an explosion",
    ),
    "stop": (
        RunStopped(code="OPT001", why="the budget of OPT001 is spent",
                   checkpoint="a/step-9.safetensors").to_dict(),
        "Stopped the run [OPT001]",
        "the budget of OPT001 is spent; the last good state is in a/step-9.safetensors",
    ),
    "checkpoint": (
        CheckpointResult(why="time", file="step-9.safetensors", bytes=3 << 20,
                         seconds=0.5).to_dict(),
        "Saved a checkpoint",
        "step-9.safetensors, 3 MiB, 500 ms in the background",
    ),
    "snapshots": (
        SnapshotTotals(count=40, every=16, ms=1.5, bytes=1 << 30, dropped=2).to_dict(),
        "Kept snapshots of the state in host memory",
        "40 taken, the last 16 steps apart, 1 GiB, 1.5 ms each, 2 dropped",
    ),
    "unreadable": (
        {"index": 40, "path": "cats/8.png", "type": "OSError", "message": "truncated",
         "replaced": True},
        "Put another sample in the place of sample 40 (cats/8.png)",
        "OSError: truncated",
    ),
    "quarantine": (
        {"index": 1046, "file": "cats/7.png", "reason": "NaN in the input"},
        "Quarantined sample 1046 (cats/7.png)",
        "NaN in the input",
    ),
    "skipped_batch": (
        {"samples": [20, 21]},
        "Skipped the batch of samples 20, 21",
        "it has ended the run twice",
    ),
    "lowered_lr": (
        LoweredRate(opt=0, factor=0.5, norm=340.0, usual=1.2).to_dict(),
        "Multiplied the learning rate by 0.5",
        "gradient norm 1.2 → 340",
    ),
    "scaler": ({"what": "explosion", "scale": 102.4}, "Set the loss scale to 102.4", "explosion"),
    "resume": (
        Resumed(file="step-9.safetensors", step=9, exact=False,
                why="persistent_workers").to_dict(),
        "Resumed at step 9, not exactly: persistent_workers",
        "from step-9.safetensors",
    ),
}  # fmt: skip

PLAIN = Terminal()


def event(kind, step=977, rank=0, /, **data):
    return Event(time=0, rank=rank, step=step, kind=kind, data=data)


def text(run):
    return plain(report_lines(summarize(run), 1000)).replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize("kind", EVENTS)
def test_every_event_appears_in_every_report_with_its_numbers(make_run, make_event, kind):
    data, what, why = EVENTS[kind]
    run = make_run(events=[make_event(kind, 0, 12, **data)])
    reported = text(run)
    assert f"- {what}" in reported and why in reported and ", step 12" in reported
    action = next(
        d for d in json.loads(report_json(summarize(run)))["actions_taken"] if what in d["what"]
    )
    assert why in action["why"].replace("\N{NO-BREAK SPACE}", " ")
    page = report_html(run).replace("\N{NO-BREAK SPACE}", " ")
    assert what in page and why in page
    assert what.split(" [")[0].replace("_", "\\_") in report_md(run)


def test_no_kind_of_event_is_forgotten():
    assert set(EVENTS) == set(KINDS)
    assert rescue_of(event("start")) is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [None, "NaN", [], {}, True, -1, "x" * 5000, "\x1b[31m\n"])
def test_whatever_an_event_holds_it_can_be_reported(make_run, make_event, kind, value):
    data = dict.fromkeys(EVENTS[kind][0], value)
    line = event_line(event(kind, **data))
    assert "\n" not in line and "\x1b" not in line and len(line) < 2000
    run = make_run(events=[make_event(kind, 0, 3, **data)])
    assert report_html(run) and report_md(run) and text(run)


def test_live_line_of_a_rollback_as_in_the_design():
    line = event_line(event("rollback", **BACK))
    start = "step 977  rolled back 8 steps: loss 2.31 → 61, their data is skipped"
    assert line.startswith(start) and line.endswith("  [OPT001]")
    lower = event_line(
        event("rollback", 977, 2, **BACK | {"lr_factor": 0.5, "moments_reset": True})
    )
    assert "step 977  rank 2  rolled back" in lower
    assert "learning rate × 0.5, optimizer state reset" in lower


@pytest.mark.parametrize(
    ("why", "says"),
    [("nonfinite", "loss or gradients were non-finite"), ("weights", "weights were non-finite")],
)
def test_a_rollback_says_what_it_was_for(why, says):
    assert says in event_line(event("rollback", **BACK | {"why": why, "loss": "NaN"}))


def test_a_trial_that_blames_the_data_undoes_the_rollback(make_run, make_event):
    trial = TRIAL | {"verdict": "data", "loss": 9.0, "usual": 2.0, "tried": 8.8}
    assert "undid the rollback: with the older weights the loss is 8.8 too" in event_line(
        event("trial", **trial)
    )
    events = [make_event("rollback", 0, 5, **BACK), make_event("trial", 0, 7, **trial)]
    summary = summarize(make_run(events=events))
    assert summary.rollbacks == 1  # a rollback is recorded once it is kept: the trial is another
    assert [action.when for action in summary.actions_taken] == ["step 5", "step 7"]


@pytest.mark.parametrize(
    ("trial", "says"),
    [
        (
            {"verdict": "nonfinite", "cause": "NUM002", "loss": 0.01, "usual": 0.02, "tried": 0.01},
            "older weights give values that are not finite, too: the cause is not in the weights",
        ),
        ({"verdict": "no better", "loss": "NaN", "usual": 2.0, "tried": 9.0}, "no better: loss 9,"),
        ({"verdict": "data", "loss": "NaN", "usual": "NaN", "tried": "NaN"}, "no better: loss NaN"),
        ({"verdict": "data", "loss": 1.0, "usual": 2.0, "tried": 1.1}, "no better: loss 1.1,"),
    ],
)
def test_no_change_of_data_is_reported_of_nan_or_of_a_loss_that_fell(trial, says):
    line = event_line(event("trial", **TRIAL | trial))
    assert "undid the rollback: " in line and says in line and "data has changed" not in line
    assert line.endswith("[NUM002]") == ("cause" in trial)


def test_the_end_counts_rollbacks(make_run, make_event):
    events = [make_event("rollback", 0, step, **BACK) for step in (5, 9)]
    run = make_run(events=events)
    first = " ".join(end_summary(run).split())
    assert "after 20 steps; rolled back 2 times (off: --on OPT001=observe)." in first
    assert "2 rollbacks" in text(run) and "2 rollbacks" in report_md(run)
    assert "<dt>rollbacks</dt><dd>2</dd>" in report_html(run)
    assert "2 steps where the run was rolled back" in report_md(run)
    assert "rollback" not in end_summary(make_run(name="other")).splitlines()[0]


def test_ranks_roll_back_together_and_count_once(make_run, make_rows, make_event, record_lane):
    run = make_run(events=[make_event("rollback", 0, 5, **BACK)])
    record_lane(run, make_rows(20), lane="r1", events=[make_event("rollback", 1, 5, **BACK)])
    summary = summarize(run)
    assert summary.rollbacks == 1
    assert summary.actions_taken[0].what == "Rolled back 8 steps [OPT001] (ranks 0-1)"


def test_a_run_that_holdfast_stopped_says_so_and_why(make_run, make_event):
    stop = make_event("stop", 0, 12, **EVENTS["stop"][0])
    summary = summarize(make_run(events=[stop], exit_code=1))
    assert summary.outcome == "stopped"
    assert summary.ending.line == "stopped by holdfast, the budget of OPT001 is spent"
    assert report_md(make_run(name="b", events=[stop], exit_code=1)).startswith("# Stopped: ")
    line = event_line(event("stop", **EVENTS["stop"][0] | {"checkpoint": ""}))
    assert line.startswith(
        "step 977  stopped the run: the budget of OPT001 is spent; no good state"
    )


def test_of_many_events_of_one_kind_the_last_is_reported(make_run, make_event):
    events = [make_event("quarantine", 0, i, index=i, reason="NaN") for i in range(30)]
    events += [make_event("checkpoint", 0, i, **FAILED) for i in range(6)]
    saved = EVENTS["checkpoint"][0]
    events += [make_event("checkpoint", 0, i, **saved | {"file": f"s{i}"}) for i in range(9)]
    actions_taken = {
        action.what: action for action in summarize(make_run(events=events)).actions_taken
    }
    assert set(actions_taken) == {
        "Quarantined samples, 30 times",
        "Could not save checkpoints, 6 times",
        "Saved checkpoints, 9 times",
    }
    assert "quarantined sample 29" in actions_taken["Quarantined samples, 30 times"].why
    assert actions_taken["Quarantined samples, 30 times"].when.endswith("between 0 and 29")


def test_steps_left_out_for_their_norm_are_reported_apart_from_poisoned_ones(make_run, make_rows):
    rows = make_rows(20, skipped={4: 1, 9: 1}, loss_bad={4: 1}, outlier={9: 3},
                     grad_norm={9: 900.0}, clip={12: 0.25})  # fmt: skip
    poisoned, exploded, clipped = summarize(make_run(rows)).actions_taken
    assert (poisoned.what, poisoned.when) == ("Skipped steps with non-finite values", "step 4")
    assert (exploded.what, exploded.when) == ("Skipped steps with exploding gradients", "step 9")
    assert exploded.why == "gradient norm up to 900, baseline 1.5"
    assert (clipped.when, clipped.why) == ("step 12", "by a factor of 0.25 or more")


def test_the_policy_is_one_line_at_the_start_and_whole_in_the_report(make_run, make_event):
    rules = Policy().lines()
    line = event_line(event("policy", 0, rules=rules))
    assert line == (
        "holdfast: policy: NUM001, NUM002: skip; NUM003: rollback; NUM005: skip + quarantine; "
        "OPT001: rollback; OPT002: skip + clip; OPT003: rollback + lower_lr; all else: observe "
        "(--observe to only record)"
    )
    assert event_line(event("policy", 0, 1, rules=rules)) == "", "once, not by every rank"
    assert "change nothing" in event_line(event("policy", 0, rules=["NUM001: observe"]))
    run = make_run(events=[make_event("policy", 0, 0, rules=rules)])
    # With the names of the codes, which say what they are about.
    assert "NUM001 nonfinite loss, NUM002 nonfinite gradient: skip" in report_html(run)
    assert all(rule.split(": ")[1] in report_html(run) for rule in rules)
    assert "NUM001 nonfinite loss, NUM002 nonfinite gradient: skip" in text(run)
    assert "- OPT001 loss spike: rollback (stop after 3 times" in report_md(run)
    assert summarize(run).actions_taken == (), "a policy is no action taken"
    assert event_line(event("policy", 0, rules="odd")) == ""


@pytest.mark.parametrize("kind", ["snapshots", "checkpoint"])
def test_what_goes_well_is_not_told_while_it_runs(kind):
    assert event_line(event(kind, **EVENTS[kind][0])) == ""
    failed = event_line(event("checkpoint", **FAILED))
    assert failed == "step 977  could not save a checkpoint: No space left on device"


def test_a_storm_of_events_is_no_storm_of_lines():
    said: list[str] = []
    live = Live(said.append, terminal=PLAIN)
    for i in range(1200):
        live.show([], [event("quarantine", i, index=i, reason="NaN")])
    assert [int(line.split()[1]) + 1 for line in said] == [1, 2, 3, 10, 100, 1000]
    said.clear()
    for i in range(20):
        live.show([], [event("rollback", i, **BACK)])
    assert len(said) == 20, "each rollback is told"


def test_a_rollback_is_reported_once_by_its_event_not_again_by_its_finding():
    said: list[str] = []
    live = Live(said.append, terminal=PLAIN)
    finding = Finding(
        code="OPT001", name="loss_spike", severity=Severity.ERROR, step=977, last_step=977,
        message="step 977: rolled back", advice="look", action="rollback", evidence={"count": 1},
    )  # fmt: skip
    live.show([finding], [event("rollback", **BACK)])
    assert len(said) == 1 and "rolled back 8 steps" in said[0]
    Live(said.append, terminal=PLAIN).show([finding])
    assert len(said) == 2, "without the event the finding speaks"


def test_the_story_of_an_incident_tells_what_was_done(
    make_rows, add_lane, make_layers, incident_finding, tmp_path
):
    run = Run.create(tmp_path / "story", {"script": "train.py"})
    names = ["a.weight", "b.weight"]
    seen = incident_finding(12, cause=None, code="OPT001", name="loss_spike", action="rollback")
    add_lane(run, make_rows(30), tables={"layers0": make_layers(range(4, 21), names, {})},
             events=[event("rollback", 14, **BACK), event("rollback", 29, **BACK)],
             findings=[seen])  # fmt: skip
    (story,) = [story for story in stories(read_record(run)) if story.step == 12]
    assert story.sentences[-1] == (
        "On step 14 holdfast rolled back 8 steps: loss 2.31 → 61, their data is skipped."
    )
