"""What the record of a run says about going on with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.records.resuming import ResumeCheck
from holdfast.run import LaneWriter, Run
from holdfast.run.resumption import other_script, resumable, script_digest
from holdfast.types import Event


def run_with(path: Path, *checks: ResumeCheck, **meta: Any) -> Run:
    run = Run.create(path, meta)
    events = [Event(time=1.0, rank=0, step=3, kind=one.kind, data=one.to_dict()) for one in checks]
    LaneWriter(run, "r0").write_events(events)
    return run


def checkpoint(run: Run, step: int, **fields: Any) -> Path:
    folder = run.path / "checkpoints"
    folder.mkdir(exist_ok=True)
    data = folder / f"step-{step:010d}.r0.safetensors"
    data.write_bytes(b"1234")
    record = {"step": step, "file": data.name, "bytes": 4, **fields}
    data.with_suffix(".json").write_text(json.dumps(record))
    return data


def test_the_newest_checkpoint_that_can_be_resumed_from_counts(tmp_path: Path):
    run = run_with(tmp_path / "a", ResumeCheck(accepted=True))
    checkpoint(run, 7, resume=True)
    newest = checkpoint(run, 14, resume=True)
    checkpoint(run, 21)  # the state that the run ended with
    found = resumable(run)
    assert found.accepted and found.step == 14 and Path(found.checkpoint) == newest.resolve()
    newest.write_bytes(b"12")  # cut short
    assert resumable(run).step == 7


def test_a_refusal_has_its_line(tmp_path: Path):
    check = ResumeCheck(accepted=False, reason="log is a file", file="train.py", line=12, own=3)
    found = resumable(run_with(tmp_path / "a", check))
    assert not found.accepted and found.why == "log is a file, at train.py:12" and found.own == 3


def test_a_run_without_a_checkpoint_says_so(tmp_path: Path):
    found = resumable(run_with(tmp_path / "a"))
    assert not found.accepted and found.why == "no checkpoint was written yet"


def test_a_resumed_run_without_a_checkpoint_of_its_own_goes_back_to_its_origin(tmp_path: Path):
    first = run_with(tmp_path / "a")
    path = checkpoint(first, 7, resume=True)
    origin = {"run": "a", "step": 7, "checkpoint": str(path)}
    found = resumable(run_with(tmp_path / "b", resumed_from=origin))
    assert found.accepted and found.checkpoint == str(path)


def test_another_script_is_told_apart(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text("1")
    command, digest = [str(script), "--lr", "1"], script_digest(str(script))
    meta = {"command": command, "digest": digest}
    assert not other_script(meta, command, digest)
    assert "not `" in other_script(meta, [str(script)], digest)
    script.write_text("2")
    assert "has changed since" in other_script(meta, command, script_digest(str(script)))
    assert script_digest("") == ""
