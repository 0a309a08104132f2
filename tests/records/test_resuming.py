"""Checkpoints and resumes: a training writes each kind, and it is read back as it was."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from holdfast.detectors.judge import Judge
from holdfast.records import KINDS, Kind, resuming
from holdfast.records.crash import LeftLoop
from holdfast.records.resuming import (
    CheckpointResult,
    OutputOpened,
    ResumeCheck,
    Resumed,
)
from holdfast.run import LaneReader, Run
from holdfast.types import Event

from ..resume.conftest import Bench
from ..resume.conftest import bench as bench
from ..watching.test_resume import Loop


def written(run: Run) -> list[Kind]:
    """The records of this theme in a run folder, and what left a loop."""
    found: list[Kind] = []
    for event in (e for lane in run.lanes() for e in LaneReader(run, lane).events()):
        kind = KINDS.get(event.kind)
        if kind is LeftLoop or (kind is not None and kind.__module__ == resuming.__name__):
            record = kind.from_dict(event.data)
            assert kind.from_dict(record.to_dict()) == record == event.record
            found.append(record)
    return found


def test_a_loop_that_is_saved_left_and_resumed(tmp_path: Path) -> None:
    first = Loop(tmp_path / "run").train(stop=3)
    with contextlib.suppress(ValueError), first.watch:
        raise ValueError("enough")
    again = Loop(tmp_path / "run", resume=True)
    again.train(epochs=1)
    again.watch.close()
    found = written(Run.open(tmp_path / "run"))
    saved = next(one for one in found if isinstance(one, CheckpointResult))
    assert (saved.why, saved.failed, saved.good) == ("asked", "", True)
    assert Path(saved.file).stat().st_size == saved.bytes
    assert saved.to_dict()["kind"] == "asked"
    (left,) = (one for one in found if isinstance(one, LeftLoop))
    assert (left.type, left.message) == ("ValueError", "enough") and left.line > 0
    (resumed,) = (one for one in found if isinstance(one, Resumed))
    assert (resumed.step, resumed.exact, resumed.why) == (3, True, "")


def test_a_script_that_can_be_resumed_and_the_files_it_writes(bench: Bench) -> None:
    script = bench.script("""
        train = DataLoader(data(160), batch_size=16, shuffle=True)
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        log = open("log.csv", "a")
        for x, y in train:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            log.write("row\\n")
        """)
    ended = bench.run(script)
    assert ended.code == 0, ended.err
    found = written(ended.run)
    (check,) = (one for one in found if isinstance(one, ResumeCheck))
    assert check == ResumeCheck(accepted=True)
    (opened,) = (one for one in found if isinstance(one, OutputOpened))
    assert (Path(opened.file).name, opened.bytes, opened.appends) == ("log.csv", 0, True)
    assert any(isinstance(one, CheckpointResult) and one.resume for one in found)


def test_a_renamed_key_is_reported(make_rows: Any) -> None:
    data = ResumeCheck(accepted=True).to_dict()
    data["possible"] = data.pop("accepted")
    judge = Judge()
    judge.feed(make_rows(8), [Event(time=0.0, rank=0, step=5, kind="resumable", data=data)])
    (error,) = judge.errors
    assert error.data["where"] == "reading an event resumable"
    assert "no key 'accepted', and the unknown key 'possible'" in error.data["error"]


def test_a_checkpoint_of_before_there_was_this_room_is_read() -> None:
    part = CheckpointResult.from_dict({"kind": "step", "part": 1, "bytes": 9, "seconds": 0.1})
    assert (part.why, part.part, part.file) == ("step", 1, "")
    failed = CheckpointResult.from_dict({"kind": "time", "failed": "the disk is full"})
    assert failed.failed == "the disk is full"
