from __future__ import annotations

import math
import os
import subprocess
import sys
import time

import pytest

from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import CheckpointError


def steps(entries):
    return [entry.step for entry in entries]


def names(shelf):
    return sorted(path.name for path in shelf.folder.iterdir())


def test_a_shelf_that_is_not_there_is_empty(shelf):
    assert shelf.entries() == [] and shelf.latest() is None and shelf.best() is None
    assert shelf.prune(1) == []


def test_entries_are_sorted_and_tell_what_the_record_says(shelf, put):
    put(1200, metrics={"loss": 0.5, "val": float("nan")}, kind="time")
    put(200, rank=1)
    put(200)
    put(10_000_000_000)
    entries = shelf.entries()
    assert [(e.step, e.rank) for e in entries] == [(200, 0), (200, 1), (1200, 0), (10**10, 0)]
    assert all(entry.good for entry in entries)
    assert entries[2].metric("loss") == 0.5 and entries[2].metrics == ["loss", "val"]
    assert math.isnan(entries[2].metric("val")) and math.isnan(entries[2].metric("other"))
    assert entries[2].bytes == entries[2].path.stat().st_size
    assert steps(shelf.entries(rank=1)) == [200]


def test_other_files_are_left_out(shelf, put):
    put(1)
    for name in ("notes.json", "model.safetensors", "step-1.r0.json", "step-0000000001.r0.txt"):
        (shelf.folder / name).write_text("{}")
    assert len(shelf.entries()) == 1


def test_damage_that_shows_at_a_glance_is_marked(shelf, put, flip):
    for step in (1, 2, 3, 4):
        put(step)
    flip(shelf.path(1).with_suffix(".json"), at=40)
    shelf.path(2).write_bytes(b"short")
    shelf.path(3).unlink()
    shelf.path(4).with_suffix(".json").unlink()
    told = [entry.damage for entry in shelf.entries()]
    assert "digest is wrong" in told[0] and "5 bytes and should have" in told[1]
    assert (
        "the data is not" in told[2] and "its record step-0000000004.r0.json is missing" in told[3]
    )
    assert not any(entry.good for entry in shelf.entries())


def test_the_latest_is_the_newest_that_is_proven_whole(shelf, put, flip):
    for step in (1, 2, 3, 4):
        put(step, float(step))
    flip(shelf.path(4), at=-5)
    flip(shelf.path(3).with_suffix(".json"), at=30)
    refused = []
    found = shelf.latest(refused=refused.append)
    assert found is not None and found.step == 2
    assert steps(refused) == [4, 3] and "content has changed" in refused[0].damage


def test_the_latest_of_nothing_good_is_none(shelf, put, flip):
    put(1)
    flip(shelf.path(1))
    refused = []
    assert shelf.latest(refused=refused.append) is None and len(refused) == 1


def test_one_saved_while_the_run_was_not_well_is_not_good(shelf, put):
    put(1)
    put(2, good=False)
    latest, any_latest = shelf.latest(), shelf.latest(good=False)
    assert latest is not None and any_latest is not None
    assert (latest.step, any_latest.step) == (1, 2)


def test_ranks_go_on_from_one_step(shelf, put):
    for step, rank in [(1, 0), (1, 1), (2, 0)]:
        put(step, rank=rank)
    for rank in (0, 1):
        found = shelf.latest(rank=rank)
        assert found is not None and (found.step, found.rank) == (1, rank)
    put(2, rank=1)
    found = shelf.latest(rank=0)
    assert found is not None and found.step == 2


def test_ranks_of_a_larger_world_before_do_not_matter(shelf, put):
    for rank in (0, 1):
        put(1, rank=rank, world=2)
    put(2, rank=0, world=1)
    found = shelf.latest()
    assert found is not None and found.step == 2


def test_the_best_by_a_metric(shelf, put):
    for step, loss in [(1, 0.3), (2, 0.1), (3, 0.1), (4, float("nan")), (5, 0.9)]:
        put(step, metrics={"loss": loss})
    put(6)
    put(7, metrics={"loss": -1.0}, good=False)
    best, worst = shelf.best(), shelf.best(mode="max")
    assert best is not None and best.step == 3
    assert worst is not None and worst.step == 5
    assert shelf.best("accuracy") is None


# What may go.


def test_the_newest_and_the_best_stay(shelf, put):
    for step, loss in [(1, 0.3), (2, 0.1), (3, 0.2), (4, 0.5), (5, 0.6), (6, 0.7)]:
        put(step, metrics={"loss": loss})
    assert steps(shelf.prune(2, 2, dry_run=True)) == [1, 4]
    assert len(shelf.entries()) == 6
    assert steps(shelf.prune(2, 2)) == [1, 4]
    assert steps(shelf.entries()) == [2, 3, 5, 6]
    assert steps(shelf.prune(1, 1, mode="max")) == [2, 3, 5]
    assert names(shelf) == ["step-0000000006.r0.json", "step-0000000006.r0.safetensors"]


def test_the_last_good_one_is_never_removed(shelf, put, flip):
    for step in (1, 2, 3, 4):
        put(step, good=step < 4)
    flip(shelf.path(3), at=-3)
    assert steps(shelf.prune(1)) == [1]
    assert steps(shelf.entries()) == [2, 3, 4]
    flip(shelf.path(2), at=-3)
    assert shelf.prune(1, damaged=True) == []
    assert steps(shelf.entries()) == [2, 3, 4]


def test_damaged_ones_go_on_request(shelf, put, flip):
    for step in (1, 2, 3):
        put(step)
    flip(shelf.path(3), at=-3)
    shelf.path(1).write_bytes(b"")
    assert shelf.prune(1) == []
    gone = shelf.prune(1, damaged=True)
    assert sorted(steps(gone)) == [1, 3] and all(entry.damage for entry in gone)
    assert steps(shelf.entries()) == [2]


def test_one_that_was_just_written_is_not_read_again(shelf, put, monkeypatch):
    put(1)
    path = put(2).path
    monkeypatch.setattr("holdfast.checkpoint.store.verify", None)
    assert steps(shelf.prune(1, sure=[path])) == [1]


def test_each_rank_keeps_its_own(shelf, put):
    for step in (1, 2):
        for rank in (0, 1):
            put(step, rank=rank)
    assert steps(shelf.prune(1, rank=1)) == [1]
    assert [(e.step, e.rank) for e in shelf.entries()] == [(1, 0), (2, 0), (2, 1)]
    assert steps(shelf.prune(1)) == [1]


def test_a_file_that_cannot_be_removed(shelf, put, monkeypatch):
    put(1)
    put(2)

    def refuse(self, missing_ok=False):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    with pytest.raises(CheckpointError, match=r"cannot remove step-0000000001.* not permitted"):
        shelf.prune(1)


# What dead writers leave.


def test_half_written_files_of_dead_writers_are_removed(shelf, put):
    put(1)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    living = os.getppid()
    stem = "step-0000000009.r0"
    files = {
        f"{stem}.safetensors.{dead.pid}.tmp": True,
        f"{stem}.json.{dead.pid}.tmp": True,
        f"{stem}.2.safetensors.{dead.pid}.tmp": True,
        f"{stem}.safetensors.{os.getpid()}.tmp": False,
        f"{stem}.safetensors.{living}.tmp": False,
        f"step-0000000009.r1.safetensors.{dead.pid}.tmp": False,
        "notes.tmp": False,
        f"{stem}.safetensors": False,
    }
    for name in files:
        (shelf.folder / name).touch()
    shelf.open_for_writing()
    assert {name: name not in names(shelf) for name in files} == files
    # Abandoned long ago; of an earlier process that had our id.
    for pid, age in ((living, 7200), (os.getpid(), 3000)):
        os.utime(shelf.folder / f"{stem}.safetensors.{pid}.tmp", (0, time.time() - age))
    shelf.open_for_writing()
    assert not [name for name in names(shelf) if name.startswith(f"{stem}.safetensors.")]


def test_what_a_save_of_the_same_step_has_left_is_removed(shelf, put):
    put(1)
    left = shelf.folder / "step-0000000001.r0.2.safetensors"
    left.write_bytes(b"half")
    assert steps(shelf.entries()) == [1]
    shelf.open_for_writing()
    assert left.exists()  # another writer of this process may be about to use it
    os.utime(left, (0, time.time() - 3000))
    shelf.open_for_writing()
    assert len(names(shelf)) == 2 and shelf.latest() is not None


def test_a_record_without_data_is_removed(shelf, put):
    path = put(1).path
    path.unlink()
    os.utime(path.with_suffix(".json"), (0, time.time() - 3000))
    shelf.open_for_writing()
    assert names(shelf) == []


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot make the folder .* checkpoint.dir=DIR"):
        CheckpointStore(tmp_path / "file" / "checkpoints").open_for_writing()
