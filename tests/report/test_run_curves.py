"""A run that was resumed or restarted is one course: its plots and numbers begin at step 0."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from holdfast.report import read_record, report_html, report_md, words
from holdfast.report.compare import compare
from holdfast.report.html.plots import loss_change
from holdfast.report.run_curves import run_curves_of, stacked
from holdfast.run import LaneData, Run
from holdfast.types import Event

LOSS = 1.0 / (1.0 + np.arange(200.0))


def lane_of(rows, *, resumed: bool = False, lane: str = "r0", **given) -> LaneData:
    step = int(rows["step"][0])
    events = [Event(time=0.0, rank=0, step=step, kind="resume", data={})] if resumed else []
    base = {"tables": {}, "events": events, "findings": [], "batches": []}
    return LaneData(lane=lane, rank=0, steps=rows, **(base | given))


@pytest.fixture
def resumed(make_run, make_rows, make_event):
    """A run killed after step 129, and one that goes on from its checkpoint of step 120."""
    first = make_run(make_rows(130, loss=LOSS[:130]), name="first", exit_code=-9)
    rows = make_rows(79, start=121, loss=LOSS[121:200])
    second = make_run(rows, name="second", events=[make_event("resume", 0, 121)])
    first.update_meta(digest="d")
    second.update_meta(
        digest="d",
        resumed_from={
            "run": "runs/first",
            "step": 120,
            "checkpoint": str(first.path / "checkpoints" / "step.safetensors"),
        },
    )
    return first, Run.open(second.path)


def test_a_resumed_run_is_drawn_from_its_first_step_to_its_last(resumed):
    record = read_record(resumed[1])
    (run_curves,) = record.run_curves_of_ranks
    assert run_curves.lane.steps["step"].tolist() == list(range(200))
    assert run_curves.resume_points == (121,) and [len(rows) for rows in run_curves.redone] == [9]
    text = report_html(record)
    assert "Loss from 1 to 0.005 over 200 steps" in text and "Resumed at step 121." in text
    ends = [words.figure(float(np.median(some))) for some in (LOSS[:10], LOSS[-10:])]
    assert f"<dt>loss, all parts</dt><dd>{ends[0]} → {ends[1]}</dd>" in text
    assert "goes on from runs/first after step 120" in text and "made again later" in text
    assert text.count('href="#mark-join"') == 2, "loss and gradients show where it was resumed"
    assert "Loss from 1 to 0.005 over 200 steps" in report_md(record).replace("\\", "")


def test_folders_that_were_moved_together_are_found(resumed, tmp_path):
    first, second = resumed
    (tmp_path / "other").mkdir()
    for run in resumed:
        shutil.move(run.path, tmp_path / "other" / run.path.name)
    moved = read_record(Run.open(tmp_path / "other" / second.path.name))
    assert len(moved.run_curves_of_ranks[0].lane.steps) == 200 and not first.path.exists()


def test_without_the_first_part_the_page_says_so(resumed):
    first, second = resumed
    shutil.rmtree(first.path)
    text = report_html(second)
    assert "goes on from runs/first after step 120, which is not there any more" in text
    assert "over 79 steps" in text


def test_a_restart_in_the_same_folder_goes_on_from_no_other_run(resumed):
    _, second = resumed
    second.update_meta(resumed_from={"run": f"runs/{second.path.name}", "step": 120})
    assert "goes on from" not in report_html(Run.open(second.path))


def test_another_script_of_that_name_is_no_part(resumed):
    first, second = resumed
    first.update_meta(digest="another")
    assert len(read_record(second).run_curves_of_ranks[0].lane.steps) == 79


def test_runs_that_name_each_other_are_read_once(resumed):
    first, second = resumed
    first.update_meta(resumed_from={"run": str(second.path), "step": 3, "checkpoint": ""})
    assert len(read_record(second).run_curves_of_ranks[0].lane.steps) == 200


def test_a_restart_that_resumed_goes_on_and_one_that_did_not_is_shown_beside(make_rows):
    first = lane_of(make_rows(50))
    again = lane_of(make_rows(30, start=40), resumed=True, lane="r0-2")
    again.steps["time"] += 100
    (run_curves,) = run_curves_of([first, again])
    assert len(run_curves.lane.steps) == 70 and run_curves.resume_points == (40,)
    anew = lane_of(make_rows(80), lane="r0-2")
    anew.steps["time"] += 100
    lead, other = run_curves_of([first, anew])
    assert len(lead.lane.steps) == 80 and len(other.lane.steps) == 50 and not lead.resume_points


def test_parts_with_other_columns_are_stacked(make_rows):
    one, two = make_rows(3)[["step", "time", "loss"]], make_rows(2, start=3)[["step", "time", "lr"]]
    rows = stacked([one, two])
    assert rows["step"].tolist() == [0, 1, 2, 3, 4]
    assert np.isnan(rows["loss"]).tolist() == [False] * 3 + [True] * 2
    assert np.isnan(rows["lr"]).tolist() == [True] * 3 + [False] * 2


def test_a_loss_that_ends_as_nan_is_not_told_as_a_number(make_run, make_rows):
    run = make_run(make_rows(9, loss={8: np.nan, 0: 3.0}, loss_bad={8: 1}))
    record = read_record(run)
    assert loss_change(record.run_curves_of_ranks[0]) == "3 → NaN"
    text = report_html(record)
    assert "the last finite one, at step 7; then NaN or infinite" in text


def test_compare_takes_a_resumed_run_from_its_first_step_on(resumed):
    found = compare(*resumed)
    (loss,) = [figure for figure in found.figures if figure.name == "loss"]
    assert found.at_step == 129 and loss.before == pytest.approx(loss.after)
