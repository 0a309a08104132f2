"""Which run ``--resume auto`` goes on with, and what it says of those that it passes over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli._resume import find
from holdfast.config import RunSettings, Settings
from holdfast.errors import UsageError
from holdfast.launcher.command import read_command
from holdfast.records.resuming import ResumeCheck
from holdfast.run import LaneWriter, Run
from holdfast.types import Event


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user stands, with a script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass")
    return tmp_path


def made(folder: Path, name: str, age: float, **meta: Any) -> Run:
    """A run that began so long ago, with the newest ``run.json`` last."""
    facts = {"command": ["train.py"], "status": "finished", "script": "train.py", **meta}
    run = Run.create(folder / "runs" / name, facts)
    run.update_meta(created=f"2026-01-01T00:00:{60 - age:02.0f}+00:00")
    return run


def asked(said: list[str]) -> dict[str, Any] | None:
    settings = Settings(run=RunSettings(root="runs"))
    return find("auto", settings, read_command(["train.py"]), said.append)


def test_an_older_run_is_not_called_the_newest(folder: Path) -> None:
    made(folder, "a", 20, exit_code=0)
    made(folder, "b", 10, exit_code=130)
    said: list[str] = []
    assert asked(said) is None
    newer, older = said
    assert "passes over runs/b: no checkpoint was written yet" in newer
    assert "the one before, runs/a, has finished; starts anew" in older


def test_what_was_passed_over_is_said_before_the_run_it_goes_on_with(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made(folder, "a", 20, exit_code=-9)
    data = run.path / "checkpoints" / "step-0000000007.r0.safetensors"
    data.parent.mkdir()
    data.write_bytes(b"1234")
    record = {"step": 7, "file": data.name, "bytes": 4, "resume": True}
    data.with_suffix(".json").write_text(json.dumps(record))
    made(folder, "b", 10, exit_code=1)
    with pytest.raises(UsageError, match="runs/a: none of its checkpoints is whole"):
        asked([])
    monkeypatch.setattr("holdfast.cli._resume.verify", lambda path: None)
    said: list[str] = []
    point = asked(said)
    assert point is not None and (point["run"], point["step"]) == ("runs/a", 7)
    assert said == ["holdfast: passes over runs/b: no checkpoint was written yet"]


def test_a_run_that_is_known_not_to_be_resumable_is_not_begun_anew_over(folder: Path) -> None:
    run = made(folder, "a", 20, exit_code=-9)
    check = ResumeCheck(accepted=False, reason="the training loop reads no DataLoader")
    event = Event(time=1.0, rank=0, step=8, kind=check.kind, data=check.to_dict())
    LaneWriter(run, "r0").write_events([event])
    with pytest.raises(UsageError, match="runs/a: the training loop reads no DataLoader; start"):
        asked([])
