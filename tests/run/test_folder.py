from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import RunFolderError
from holdfast.run import (
    LaneWriter,
    Ring,
    Run,
    new_run_path,
    rank_of,
)
from holdfast.types import Event, Finding, Severity

pytestmark = pytest.mark.timeout(30)
WHEN = datetime(2026, 11, 15, 12, 4)
Limit = Callable[[int], AbstractContextManager[None]]


def test_a_run_is_created_and_opened(tmp_path: Path) -> None:
    meta = {"script": "train.py", "command": ["train.py"], "lr": float("nan")}
    run = Run.create(tmp_path / "a" / "b", meta)
    assert run.meta["format"] == 1
    assert run.meta["status"] == "running"
    assert datetime.fromisoformat(run.meta["created"]).tzinfo is not None
    again = Run.open(str(tmp_path / "a" / "b"))
    assert again.meta == {**run.meta, "lr": "NaN"}
    on_disk = json.loads((tmp_path / "a" / "b" / "run.json").read_text())
    assert on_disk == again.meta
    assert os.listdir(run.path) == ["run.json"]
    assert "b" in repr(run)


def test_an_existing_folder_of_the_user_will_do(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    Run.create(tmp_path, {})
    assert Run.open(tmp_path).meta["format"] == 1


def test_update_meta_changes_only_what_is_named_and_keeps_what_others_changed(run: Run) -> None:
    other = Run.open(run.path)
    other.update_meta(exit_code=3)
    run.update_meta(status="finished")
    meta = Run.open(run.path).meta
    assert (meta["status"], meta["exit_code"], meta["script"]) == ("finished", 3, "train.py")
    assert run.meta == meta
    assert os.listdir(run.path) == ["run.json"]


def test_a_full_disk_does_not_harm_the_meta_data(run: Run, full_disk: Limit) -> None:
    with full_disk(10), pytest.raises(RunFolderError, match=r"cannot write run\.json: .*free"):
        run.update_meta(status="finished")
    assert run.meta["status"] == "running"
    assert Run.open(run.path).meta["status"] == "running"


def three_parts(message: str, *, value: Any) -> None:
    """What with the value, where, next move: the last clause tells what to do."""
    assert str(value) in message
    assert "\n" not in message
    assert ";" in message
    assert len(message.rsplit(";", 1)[1].split()) >= 2


def test_create_says_why_it_cannot(tmp_path: Path, full_disk: Limit) -> None:
    (tmp_path / "file").touch()
    cases = {
        tmp_path / "file": "is a file",
        tmp_path / "file" / "sub": "Not a directory",
        tmp_path / ("x" * 300): "name too long",
    }
    for path, said in cases.items():
        with pytest.raises(RunFolderError, match=said) as caught:
            Run.create(path, {})
        three_parts(str(caught.value), value=path)
        assert "--run-dir" in str(caught.value)
    with full_disk(0), pytest.raises(RunFolderError, match="File too large") as caught:
        Run.create(tmp_path / "new" / "deep", {})
    three_parts(str(caught.value), value=tmp_path / "new" / "deep")
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_create_in_an_unwritable_place(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunFolderError, match=r"Permission denied.*--run-dir"):
        Run.create(tmp_path / "run", {})


def test_create_refuses_a_folder_with_a_run(run: Run) -> None:
    with pytest.raises(RunFolderError, match="already holds a run") as caught:
        Run.create(run.path, {"script": "other.py"})
    three_parts(str(caught.value), value=run.path)
    assert Run.open(run.path).meta["script"] == "train.py"


def test_open_says_why_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "plain").mkdir()
    contents = {
        "corrupt": b'{"format": 1, "scr',
        "binary": b"\x00\xff\x00",
        "list": b"[1, 2]",
        "future": b'{"format": 2}',
        "formatless": b"{}",
    }
    for name, data in contents.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_bytes(data)
    (tmp_path / "folder" / "run.json").mkdir(parents=True)
    cases = {
        "missing": "does not exist", "file": "is a file", "plain": r"no run\.json",
        "corrupt": r"run\.json is corrupt", "binary": r"run\.json is corrupt",
        "list": r"run\.json is corrupt", "future": "format 2.*--upgrade",
        "formatless": "format None", "folder": r"cannot read run\.json",
    }  # fmt: skip
    for name, said in cases.items():
        with pytest.raises(RunFolderError, match=said) as caught:
            Run.open(tmp_path / name)
        three_parts(str(caught.value), value=tmp_path / name)


def test_runs_are_listed_newest_first_and_others_passed_over(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    assert Run.list(root) == []
    with pytest.raises(RunFolderError, match=r"no run found under .*holdfast run"):
        Run.latest(root)
    made = {
        "old": "2026-11-14T12:00:00+00:00",
        "new": "2026-11-15T12:00:00+02:00",
        "newest": "2026-11-15T11:00:00+00:00",
        "same-2": "2026-01-01T00:00:00+00:00",
        "same-10": "2026-01-01T00:00:00+00:00",
        "nonsense": "yesterday",
    }
    for name, created in made.items():
        Run.create(root / name, {"created": created})
    (root / "broken").mkdir()
    (root / "broken" / "run.json").write_text("{")
    (root / "file").touch()
    names = [run.path.name for run in Run.list(root)]
    assert names == ["newest", "new", "old", "same-10", "same-2", "nonsense"]
    assert Run.latest(root).path == root / "newest"


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("train.py", "train"), ("/home/me/my train.py", "my-train"), ("pkg.train", "pkg.train"),
        ("-", "run"), ("", "run"), ("zug/träin.py", "tr-in"), ("x" * 300 + ".py", "x" * 60),
    ],
)  # fmt: skip
def test_new_runs_are_named_after_time_and_script(tmp_path: Path, script: str, name: str) -> None:
    assert new_run_path(tmp_path, script, WHEN) == tmp_path / f"2026-11-15-1204-{name}"


def test_taken_names_get_a_number(tmp_path: Path) -> None:
    names = [Run.create_in(tmp_path, "train.py", {}, WHEN).path.name for _ in range(3)]
    base = "2026-11-15-1204-train"
    assert names == [base, f"{base}-2", f"{base}-3"]
    assert new_run_path(tmp_path, "train.py", WHEN).name == f"{base}-4"


def test_create_in_survives_another_that_takes_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir, raced = Path.mkdir, []

    def race(self: Path, *arguments: Any, **options: Any) -> None:
        if self.parent == tmp_path and not raced:
            raced.append(self)
            mkdir(self)
        mkdir(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", race)
    assert Run.create_in(tmp_path, "train.py", {}, WHEN).path.name.endswith("-2")
    assert raced


def test_create_in_says_why_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "sub", tmp_path / ("x" * 300)):
        with pytest.raises(RunFolderError, match="--run-dir"):
            Run.create_in(root, "train.py", {}, WHEN)


def test_a_folder_of_runs_that_we_make_stays_out_of_the_repository(
    tmp_path: Path, full_disk: Limit
) -> None:
    ignore = tmp_path / "runs" / ".gitignore"
    run = Run.create_in(tmp_path / "runs", "train.py", {})
    assert ignore.read_bytes() == b"*\n" and [r.path for r in Run.list(run.path.parent)]
    other = Run.create_in(tmp_path / "runs", "train.py", {})
    assert other.remove_if_empty() and ignore.exists()
    assert run.remove_if_empty() and not ignore.parent.exists()
    with full_disk(4), pytest.raises(RunFolderError, match="File too large"):
        Run.create_in(tmp_path / "runs", "train.py", {})
    assert not ignore.parent.exists()


@pytest.mark.parametrize("content", [None, "*.bin\n"])
def test_a_folder_of_runs_of_the_user_is_left_as_it_is(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / ".gitignore").write_text(content)
    Run.create_in(tmp_path, "train.py", {}).remove_if_empty()
    Run.create_in(tmp_path, "train.py", {})
    ignore = tmp_path / ".gitignore"
    assert (ignore.read_text() if ignore.exists() else None) == content


def test_lanes_are_claimed_once(run: Run) -> None:
    assert run.claim_lane(0, 11) == "r0"
    assert run.claim_lane(0, 12) == "r0-p12"
    assert run.claim_lane(0, 12) == "r0-p12-2"
    assert run.claim_lane(10, 13) == "r10"
    assert run.claim_lane(2, 14) == "r2"
    assert run.lanes() == ["r0", "r0-p12", "r0-p12-2", "r2", "r10"]
    assert [rank_of(lane) for lane in run.lanes()] == [0, 0, 0, 2, 10]
    with pytest.raises(ValueError, match="not a lane"):
        rank_of("r0-x")


def test_a_lane_whose_ring_is_gone_is_still_taken(run: Run) -> None:
    assert run.claim_lane(0, 11) == "r0"
    LaneWriter(run, "r0").write_events([Event(time=0, rank=0, step=0, kind="start")])
    run.remove_ring("r0")
    assert run.claim_lane(0, 12) == "r0-p12"
    assert not run.ring_path("r0").exists()


def test_a_claim_goes_with_its_process_if_that_made_no_ring(run: Run) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    child = process.pid
    process.wait()
    first = run.claim_lane(0, child)
    dead, alive = run.claim_lane(0, child), run.claim_lane(0, os.getpid())
    Path(f"{run.ring_path(dead)}.tmp").touch()
    drained = run.claim_lane(0, child)
    Ring.create(run.ring_path(drained), 4096, pid=child)
    run.remove_dead_claims()
    assert set(run.lanes()) == {first, alive, drained}, "whose process has ended is not known of r0"
    assert not list(run.path.glob("*.tmp"))


def test_claiming_in_a_folder_that_is_gone(run: Run) -> None:
    (run.path / "run.json").unlink()
    run.path.rmdir()
    with pytest.raises(RunFolderError, match=r"cannot make ring\.r0\.bin.*--run-dir"):
        run.claim_lane(0, 1)


def test_only_our_file_names_count(run: Run) -> None:
    for name in ("steps.r0.000010.bin", "steps.r0.000009.bin", "layers.r1.000000.bin",
                 "steps.r0.1000000.bin", "steps.r0.000011.bin.tmp", "steps.r0-p7.000000.bin",
                 "other.r3.jsonl", "foo.r4.bin", "events.r5.jsonl", "model.bin"):  # fmt: skip
        (run.path / name).touch()
    assert run.lanes() == ["r0", "r0-p7", "r1", "r5"]
    names = [path.name for path in run.table_paths("steps", "r0")]
    assert names == ["steps.r0.000009.bin", "steps.r0.000010.bin", "steps.r0.1000000.bin"]
    assert run.table_paths("layers", "r0") == []
    assert run.tables("r1") == ["layers"]


def test_a_run_without_steps_or_findings_is_empty(run: Run, steps: Any) -> None:
    assert run.is_empty()
    lane = run.claim_lane(0, 1)
    assert run.is_empty()
    ring = Ring.create(run.ring_path(lane), 4096)
    ring.put(*steps.declaration())
    writer = LaneWriter(run, lane, ring=Ring.attach(run.ring_path(lane)))
    writer.write_events([Event(time=0, rank=0, step=0, kind="start")])
    writer.drain()
    assert run.is_empty(), "a header and an event are no step"
    ring.put(*steps.rows(0, 1)[0])
    assert not run.is_empty(), "a row in the ring is a step"
    writer.drain()
    assert not run.is_empty(), "so is one in a file"
    assert not run.remove_if_empty()
    assert run.path.exists()


def test_a_finding_is_not_nothing(run: Run) -> None:
    finding = Finding(
        code="NUM001", name="n", severity=Severity.ERROR, step=1, message="m", advice="a"
    )
    LaneWriter(run, "r0").write_findings([finding])
    assert not run.is_empty()


@pytest.mark.parametrize("name", ["ring.r0.bin", "steps.r0.000000.bin"])
def test_what_we_cannot_read_is_not_deleted(run: Run, name: str) -> None:
    (run.path / name).write_bytes(b"?" * 20_000)
    assert not run.remove_if_empty()
    assert (run.path / name).exists()


def test_an_empty_run_leaves_no_clutter(tmp_path: Path, steps: Any) -> None:
    run = Run.create_in(tmp_path / "deep" / "runs", "train.py", {}, WHEN)
    lane = run.claim_lane(0, 1)
    writer = LaneWriter(run, lane)
    writer.take([steps.declaration()])
    writer.write_events([Event(time=0, rank=0, step=0, kind="start")])
    (run.path / "steps.r0.000001.bin.77.tmp").touch()
    (run.path / "run.json.77.tmp").touch()
    assert run.remove_if_empty()
    assert os.listdir(tmp_path) == []


def test_folders_and_files_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    assert Run.create_in(tmp_path / "runs", "a.py", {}, WHEN).remove_if_empty()
    assert os.listdir(tmp_path) == ["runs"], "we did not make it"

    run = Run.create(tmp_path / "runs", {})
    assert run.remove_if_empty()
    assert os.listdir(tmp_path) == ["runs"], "the run folder was there before us"

    run = Run.create(tmp_path / "mine", {})
    (run.path / "notes.txt").touch()
    assert run.remove_if_empty()
    assert os.listdir(run.path) == ["notes.txt"]

    first = Run.create(tmp_path / "more" / "a", {})
    Run.create(tmp_path / "more" / "b", {})
    assert first.remove_if_empty()
    assert os.listdir(tmp_path / "more") == ["b"]

    opened = Run.open(tmp_path / "more" / "b")
    assert opened.remove_if_empty()
    assert os.listdir(tmp_path / "more") == []
