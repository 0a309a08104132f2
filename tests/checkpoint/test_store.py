from __future__ import annotations

import math
import os
import subprocess
import sys
import time

import pytest
import torch

from holdfast.checkpoint.sharded.saving import save as save_over_ranks
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import CheckpointError


def steps(entries):
    return [entry.step for entry in entries]


def names(store):
    return sorted(path.name for path in store.folder.iterdir())


def test_a_shelf_that_is_not_there_is_empty(store):
    assert store.entries() == [] and store.latest() is None and store.best() is None
    assert store.prune(1) == []


def test_entries_are_sorted_and_tell_what_the_record_says(store, put):
    put(1200, metrics={"loss": 0.5, "val": float("nan")}, kind="time")
    put(200, rank=1)
    put(200)
    put(10_000_000_000)
    entries = store.entries()
    assert [(e.step, e.rank) for e in entries] == [(200, 0), (200, 1), (1200, 0), (10**10, 0)]
    assert all(entry.good for entry in entries)
    assert entries[2].metric("loss") == 0.5 and entries[2].metrics == ["loss", "val"]
    assert math.isnan(entries[2].metric("val")) and math.isnan(entries[2].metric("other"))
    assert entries[2].bytes == entries[2].path.stat().st_size
    assert steps(store.entries(rank=1)) == [200]


def test_other_files_are_left_out(store, put):
    put(1)
    for name in ("notes.json", "model.safetensors", "step-1.r0.json", "step-0000000001.r0.txt"):
        (store.folder / name).write_text("{}")
    assert len(store.entries()) == 1


def test_damage_that_shows_at_a_glance_is_marked(store, put, flip):
    for step in (1, 2, 3, 4):
        put(step)
    flip(store.path(1).with_suffix(".json"), at=40)
    store.path(2).write_bytes(b"short")
    store.path(3).unlink()
    store.path(4).with_suffix(".json").unlink()
    reported = [entry.damage for entry in store.entries()]
    assert "digest is wrong" in reported[0] and "5 bytes and should have" in reported[1]
    assert (
        "the data is not" in reported[2]
        and "its record step-0000000004.r0.json is missing" in reported[3]
    )
    assert not any(entry.good for entry in store.entries())


def test_the_latest_is_the_newest_that_is_proven_whole(store, put, flip):
    for step in (1, 2, 3, 4):
        put(step, float(step))
    flip(store.path(4), at=-5)
    flip(store.path(3).with_suffix(".json"), at=30)
    refused = []
    found = store.latest(refused=refused.append)
    assert found is not None and found.step == 2
    assert steps(refused) == [4, 3] and "content has changed" in refused[0].damage


def test_the_latest_of_nothing_good_is_none(store, put, flip):
    put(1)
    flip(store.path(1))
    refused = []
    assert store.latest(refused=refused.append) is None and len(refused) == 1


def test_one_saved_while_the_run_was_not_well_is_not_good(store, put):
    put(1)
    put(2, good=False)
    latest, any_latest = store.latest(), store.latest(good=False)
    assert latest is not None and any_latest is not None
    assert (latest.step, any_latest.step) == (1, 2)


def test_ranks_go_on_from_one_step(store, put):
    for step, rank in [(1, 0), (1, 1), (2, 0)]:
        put(step, rank=rank)
    for rank in (0, 1):
        found = store.latest(rank=rank)
        assert found is not None and (found.step, found.rank) == (1, rank)
    put(2, rank=1)
    found = store.latest(rank=0)
    assert found is not None and found.step == 2


def test_ranks_of_a_larger_world_before_do_not_matter(store, put):
    for rank in (0, 1):
        put(1, rank=rank, world=2)
    put(2, rank=0, world=1)
    found = store.latest()
    assert found is not None and found.step == 2


def test_the_best_by_a_metric(store, put):
    for step, loss in [(1, 0.3), (2, 0.1), (3, 0.1), (4, float("nan")), (5, 0.9)]:
        put(step, metrics={"loss": loss})
    put(6)
    put(7, metrics={"loss": -1.0}, good=False)
    best, worst = store.best(), store.best(mode="max")
    assert best is not None and best.step == 3
    assert worst is not None and worst.step == 5
    assert store.best("accuracy") is None


# What may go.


def test_the_newest_and_the_best_stay(store, put):
    for step, loss in [(1, 0.3), (2, 0.1), (3, 0.2), (4, 0.5), (5, 0.6), (6, 0.7)]:
        put(step, metrics={"loss": loss})
    assert steps(store.prune(2, 2, dry_run=True)) == [1, 4]
    assert len(store.entries()) == 6
    assert steps(store.prune(2, 2)) == [1, 4]
    assert steps(store.entries()) == [2, 3, 5, 6]
    assert steps(store.prune(1, 1, mode="max")) == [2, 3, 5]
    assert names(store) == ["step-0000000006.r0.json", "step-0000000006.r0.safetensors"]


def test_the_last_good_one_is_never_removed(store, put, flip):
    for step in (1, 2, 3, 4):
        put(step, good=step < 4)
    flip(store.path(3), at=-3)
    assert steps(store.prune(1)) == [1]
    assert steps(store.entries()) == [2, 3, 4]
    flip(store.path(2), at=-3)
    assert store.prune(1, damaged=True) == []
    assert steps(store.entries()) == [2, 3, 4]


def test_damaged_ones_go_on_request(store, put, flip):
    for step in (1, 2, 3):
        put(step)
    flip(store.path(3), at=-3)
    store.path(1).write_bytes(b"")
    assert store.prune(1) == []
    gone = store.prune(1, damaged=True)
    assert sorted(steps(gone)) == [1, 3] and all(entry.damage for entry in gone)
    assert steps(store.entries()) == [2]


def test_one_that_was_just_written_is_not_read_again(store, put, monkeypatch):
    put(1)
    path = put(2).path
    monkeypatch.setattr("holdfast.checkpoint.store.verify", None)
    assert steps(store.prune(1, sure=[path])) == [1]


def test_each_rank_keeps_its_own(store, put):
    for step in (1, 2):
        for rank in (0, 1):
            put(step, rank=rank)
    assert steps(store.prune(1, rank=1)) == [1]
    assert [(e.step, e.rank) for e in store.entries()] == [(1, 0), (2, 0), (2, 1)]
    assert steps(store.prune(1)) == [1]


def test_a_file_that_cannot_be_removed(store, put, monkeypatch):
    put(1)
    put(2)

    def refuse(self, missing_ok=False):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    with pytest.raises(CheckpointError, match=r"cannot remove step-0000000001.* not permitted"):
        store.prune(1)


# What dead writers leave.


def test_half_written_files_of_dead_writers_are_removed(store, put):
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
        (store.folder / name).touch()
    store.open_for_writing()
    assert {name: name not in names(store) for name in files} == files
    # Abandoned long ago; of an earlier process that had our id.
    for pid, age in ((living, 7200), (os.getpid(), 3000)):
        os.utime(store.folder / f"{stem}.safetensors.{pid}.tmp", (0, time.time() - age))
    store.open_for_writing()
    assert not [name for name in names(store) if name.startswith(f"{stem}.safetensors.")]


def test_what_a_save_of_the_same_step_has_left_is_removed(store, put):
    put(1)
    left = store.folder / "step-0000000001.r0.2.safetensors"
    left.write_bytes(b"half")
    assert steps(store.entries()) == [1]
    store.open_for_writing()
    assert left.exists()  # another writer of this process may be about to use it
    os.utime(left, (0, time.time() - 3000))
    store.open_for_writing()
    assert len(names(store)) == 2 and store.latest() is not None


def test_a_record_without_data_is_removed(store, put):
    path = put(1).path
    path.unlink()
    os.utime(path.with_suffix(".json"), (0, time.time() - 3000))
    store.open_for_writing()
    assert names(store) == []


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot make the folder .* checkpoint.dir=DIR"):
        CheckpointStore(tmp_path / "file" / "checkpoints").open_for_writing()


def over_ranks(store, step, *, value=1.0, **meta):
    """A checkpoint in a folder, by one rank."""
    tree = {"models": {"m": {"w": torch.full((4,), value)}}}
    return save_over_ranks(tree, step, folder=store.folder, meta=meta).path


def test_folders_of_several_ranks_stand_beside_files(store, put):
    put(1, world=2)
    put(2, rank=1, world=2)
    path = over_ranks(store, 3, metrics={"loss": 0.25})
    found = store.entries()
    assert [(one.step, one.shared) for one in found] == [(1, False), (2, False), (3, True)]
    assert found[2].good and found[2].metric("loss") == 0.25 and found[2].bytes > 0
    for rank in (0, 1, 7):  # it belongs to all of them
        assert store.latest(rank=rank).path == path == store.best(rank=rank, proven=True).path
    assert store.newest().path == path and store.resumable()


def test_folders_are_pruned_whole(store):
    for step in (1, 2, 3):
        over_ranks(store, step)
    assert [entry.step for entry in store.prune(1)] == [1, 2]
    assert [path.name for path in store.folder.iterdir()] == ["step-0000000003"]


def test_a_folder_without_an_index_is_damaged(store):
    path = over_ranks(store, 3)
    (path / "index.json").unlink()
    (entry,) = store.entries()
    assert "index.json is missing: the save was cut short" in entry.damage
    assert (entry.step, entry.path, store.latest()) == (3, path, None)


def test_half_written_folders_of_earlier_lives_go(store, monkeypatch):
    old, ours = (store.folder / f"step-0000000005.{word}-1.tmp" for word in ("old", "ours"))
    for folder in (old, ours):
        folder.mkdir(parents=True)
        (folder / "r0.safetensors").write_bytes(b"")
    store.remove_leftover_folders(0, "ours")
    assert old.exists()  # younger than this process: somebody may be at work
    monkeypatch.setattr("holdfast.checkpoint.store._STARTED", time.time() + 60)
    store.remove_leftover_folders(1, "ours")
    assert old.exists()  # not this rank's to remove
    store.remove_leftover_folders(0, "ours")
    assert ours.exists() and not old.exists()
    assert store.entries() == []  # never listed
