"""What every form of report says of the state that a run left."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.records.recovery import LastStateResult, SavingLastState
from holdfast.records.resuming import CheckpointResult, ResumeCheck
from holdfast.report import end_summary, report_html, report_json, report_md, summarize
from holdfast.report.live import event_line
from holdfast.types import Event

FILE = "checkpoints/step-0000000019.r0.safetensors"
SAVED = LastStateResult(
    why="ValueError", source="live", file="x", models=("Net",), bytes=3 << 20
).to_dict()
FAILED = LastStateResult(why="OSError", failed="the disk is full").to_dict()
OLDER = CheckpointResult(why="time", file="x", bytes=10).to_dict()


def event(kind: str, data: dict[str, Any], *, step: int = 19, rank: int = 0) -> Event:
    return Event(time=1.0, rank=rank, step=step, kind=kind, data=data)


def run_with(make_run: Any, tmp_path: Path, *events: Event, **given: Any) -> Any:
    file = str(tmp_path / "run" / FILE)
    reported = [
        replace(e, data={**e.data, "file": file}) if e.data.get("file") else e for e in events
    ]
    return make_run(events=reported, **{"exit_code": 1, **given})


def test_the_lines_that_load_it_stand_in_every_report(make_run: Any, tmp_path: Path) -> None:
    run = run_with(make_run, tmp_path, event("last_state", SAVED))
    path = str(run.path / FILE)
    lines = [
        f'state = holdfast.load_checkpoint("{path}")',
        'model.load_state_dict(state["model"])',
        'optimizer.load_state_dict(state["optimizer"])',
    ]
    said = end_summary(run)
    assert f"saved   {path}\n          state after step 19, 3 MiB\n" in said
    # A terminal would break the long name amid a word: the folder of the run says it, too.
    assert f'state = holdfast.load_checkpoint("{run.path}")' in said and lines[2] in said
    for report in (report_md(run), report_html(run).replace("&quot;", '"')):
        assert all(line in report for line in lines) and path in report
    reported = json.loads(report_json(summarize(run)))["saved_state"]
    assert reported["path"] == path and reported["step"] == 19 and reported["bytes"] == 3 << 20
    assert len(reported["code"]) == 4 and not reported["failed"]


def test_a_snapshot_says_its_step_and_why(make_run: Any, tmp_path: Path) -> None:
    note = "step 30 was cut short inside optimizer.step"
    data = {**SAVED, "source": "snapshot", "note": note}
    saved = summarize(run_with(make_run, tmp_path, event("last_state", data))).saved_state
    assert saved is not None
    assert saved.what == f"newest snapshot, after step 19: {note}, 3 MiB"


def test_several_models_are_loaded_by_name(make_run: Any, tmp_path: Path) -> None:
    data = {**SAVED, "models": ["Maker", "Judge"], "optimizers": 2}
    saved = summarize(run_with(make_run, tmp_path, event("last_state", data))).saved_state
    assert saved is not None
    assert saved.code[2:] == (
        'maker.load_state_dict(state["models"]["Maker"])',
        'judge.load_state_dict(state["models"]["Judge"])',
        'optimizer0.load_state_dict(state["optimizers"][0])',
        'optimizer1.load_state_dict(state["optimizers"][1])',
    )


def test_of_several_ranks_the_first_is_shown(make_run: Any, tmp_path: Path) -> None:
    events = [event("last_state", SAVED), event("last_state", FAILED, rank=1)]
    saved = summarize(run_with(make_run, tmp_path, *events)).saved_state
    assert saved is not None
    assert saved.path and not saved.failed


def test_what_was_not_saved_is_said_in_one_line_with_what_there_is(
    make_run: Any, tmp_path: Path
) -> None:
    failed = event("last_state", FAILED)
    said = end_summary(run_with(make_run, tmp_path, failed))
    assert "not saved the state after the last complete step: the disk is full" in said
    assert "load_checkpoint" not in said
    older = event("checkpoint", OLDER, step=10)
    saved = summarize(run_with(make_run, tmp_path, older, failed, name="two")).saved_state
    assert saved is not None
    assert saved.failed and saved.what == "checkpoint of step 10, 10 B"


@pytest.mark.parametrize(("code", "shown"), [(-9, True), (1, True), (0, False)])
def test_a_killed_run_is_reported_its_newest_checkpoint(
    make_run: Any, tmp_path: Path, code: int, shown: bool
) -> None:
    older = [event("checkpoint", OLDER, step=step) for step in (5, 10)]
    saved = summarize(run_with(make_run, tmp_path, *older, exit_code=code)).saved_state
    assert (saved is not None and saved.step == 10) == shown


def test_a_checkpoint_whose_event_a_kill_took_is_reported_too(
    make_run: Any, tmp_path: Path
) -> None:
    accepted = ResumeCheck(accepted=True).to_dict()
    reported = [event("checkpoint", OLDER, step=10), event("resumable", accepted)]
    run = run_with(make_run, tmp_path, *reported, exit_code=-9)
    folder = run.path / "checkpoints"
    folder.mkdir()
    newer = folder / "step-0000000015.r0.safetensors"
    newer.write_bytes(bytes(24))
    record = {"step": 15, "file": newer.name, "bytes": 24, "resume": True}
    newer.with_suffix(".json").write_text(json.dumps(record))
    saved = summarize(run).saved_state
    assert saved is not None and (saved.step, saved.what) == (15, "checkpoint of step 15, 24 B")
    assert saved.path == str(newer) and str(newer) in saved.code[1] and saved.goes_on


def test_live_lines() -> None:
    assert event_line(event("last_state", SAVED)) == ""
    large = event_line(event("saving_last_state", SavingLastState(bytes=5 << 30).to_dict()))
    assert large == "holdfast: saving the state after step 19 (5 GiB); Ctrl-C ends at once"
    assert "not saved: the disk is full" in event_line(event("last_state", FAILED))


@pytest.mark.parametrize(
    ("resumable", "counted", "expected"),
    [
        (True, False, "goes back to step 15: the 4 steps after it are taken again"),
        (False, False, "this run cannot be resumed: what was saved are the weights and the"),
        (False, True, ""),
    ],
)
def test_an_early_end_says_where_it_goes_on_or_why_not(
    make_run: Any, make_rows: Any, tmp_path: Path, resumable: bool, counted: bool, expected: str
) -> None:
    """Ctrl-C in the first minutes: a state was saved, and `--resume` said there was none."""
    last = event("last_state", SAVED | {"counted": counted})
    run = run_with(make_run, tmp_path, last, rows=make_rows(20), exit_code=130)
    run.update_meta(digest="0" * 64, command=["train.py"])
    if resumable:
        folder = run.path / "checkpoints"
        folder.mkdir()
        (folder / "step-0000000015.r0.safetensors").write_bytes(bytes(24))
        record = {"step": 15, "file": "step-0000000015.r0.safetensors", "bytes": 24, "resume": True}
        (folder / "step-0000000015.r0.json").write_text(json.dumps(record))
    said = end_summary(run)
    assert expected in " ".join(said.split()) if expected else "resume" not in said
    assert ("state after 20 steps" in said) == counted
