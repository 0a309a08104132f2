"""A run that begins anew names the logs with rows of the one before it, and touches none."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from holdfast.cli import _appended
from holdfast.records.resuming import OutputOpened
from holdfast.run import LaneReader, Run
from holdfast.types import Event


def test_logs_with_rows_of_a_killed_run_are_named_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path / "runs" / "one", {"script": "train.py"})
    log, same, anew = (tmp_path / name for name in ("log.csv", "same.csv", "anew.csv"))
    events: list[Event] = []
    for path, before, now, appends in (
        (log, "of another run\n", "of another run\n0,1.0\n", True),
        (same, "a\n", "a\n", True),
        (anew, "", "0,1.0\n", False),
    ):
        path.write_text(now)
        data = {"file": str(path), "bytes": len(before), "appends": appends}
        events.append(Event(time=time.time(), rank=0, step=0, kind=OutputOpened.kind, data=data))
    monkeypatch.setattr(Run, "lanes", lambda self: [0])
    monkeypatch.setattr(LaneReader, "__init__", lambda self, run, lane: None)
    monkeypatch.setattr(LaneReader, "events", lambda self: events)
    said: list[str] = []
    _appended.name_logs(run, said.append)
    (line,) = said
    assert f"{log} holds rows of {run.path}" in line
    assert log.read_text() == "of another run\n0,1.0\n"
