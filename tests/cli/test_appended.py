"""A run that begins anew does not leave the rows of the one before it twice, and loses no other."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import _appended
from holdfast.run import LaneReader, Run
from holdfast.run.appended import KEPT, OUTPUT, about
from holdfast.types import Event


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run that has opened a log for appending, and was killed."""
    run = Run.create(tmp_path / "runs" / "one", {"script": "train.py"})
    events: list[Event] = []
    monkeypatch.setattr(Run, "lanes", lambda self: [0])
    monkeypatch.setattr(LaneReader, "__init__", lambda self, run, lane: None)
    monkeypatch.setattr(LaneReader, "events", lambda self: events)

    def opened(path: Path, rows: str) -> None:
        before = os.stat(path) if path.exists() else None
        with open(path, "a") as file:
            size = before.st_size if before else 0
            told = {"file": str(path), "bytes": size, **about(str(path), before, file)}
            file.write(rows)
        events.append(Event(time=time.time(), rank=0, step=0, kind=OUTPUT, data=told))

    return run, opened


def test_rows_of_the_killed_run_are_cut_off_and_kept(killed: Any, tmp_path: Path) -> None:
    run, opened = killed
    log, made = tmp_path / "log.csv", tmp_path / "new.csv"
    log.write_text("of another run\n")
    opened(log, "0,1.0\n"), opened(made, "epoch,loss\n0,1.0\n")
    said: list[str] = []
    _appended.cut_back(run, said.append)
    assert log.read_text() == "of another run\n"
    assert not made.exists()
    assert (run.path / KEPT / "log.csv").read_text() == "0,1.0\n"
    assert (run.path / KEPT / "new.csv").read_text() == "epoch,loss\n0,1.0\n"
    assert any(f"{log} is again what it was" in line for line in said)


@pytest.mark.parametrize("how", ["later", "replaced", "changed", "link"])
def test_what_is_not_certain_is_left_and_named(killed: Any, tmp_path: Path, how: str) -> None:
    run, opened = killed
    log = tmp_path / "log.csv"
    log.write_text("of another run\n")
    opened(log, "0,1.0\n")
    if how == "later":
        os.utime(log, (time.time() + 60, time.time() + 60))
    elif how == "replaced":
        (tmp_path / "copy").write_text(log.read_text())
        os.replace(tmp_path / "copy", log)
    elif how == "changed":
        with open(log, "r+") as file:
            file.write("OF")
    else:
        os.link(log, tmp_path / "second")
    before, said = log.read_text(), list[str]()
    _appended.cut_back(run, said.append)
    assert log.read_text() == before
    assert any(str(log) in line and "come again" in line for line in said), said
