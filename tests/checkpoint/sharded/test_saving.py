"""One save of all ranks: all of it or nothing, and nobody waits for ever."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
import torch
from torch import distributed

from holdfast.checkpoint.file import load
from holdfast.checkpoint.record import WrittenCheckpoint
from holdfast.checkpoint.sharded import storage
from holdfast.checkpoint.sharded.places import PartPlace
from holdfast.checkpoint.sharded.saving import save
from holdfast.checkpoint.store import CheckpointStore, Entry
from holdfast.errors import CheckpointError


def newest(folder: Path, rank: int = 0) -> Entry:
    found = CheckpointStore(folder).latest(rank=rank)
    assert found is not None
    return found


def only(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_is_a_folder_with_a_file_per_rank_and_an_index(tmp_path, save_all):
    outcomes = save_all(tmp_path, 3, metrics={"loss": 0.5})
    folder = tmp_path / "step-0000000005"
    assert only(tmp_path) == [folder.name]
    assert only(folder) == ["index.json", "r0.safetensors", "r1.safetensors", "r2.safetensors"]
    assert all(isinstance(one, WrittenCheckpoint) and one.path == folder for one in outcomes)
    assert outcomes[0].record["metrics"] == {"loss": 0.5}
    assert outcomes[0].bytes == sum(one.stat().st_size for one in folder.glob("r*"))


def test_other_readers_of_safetensors_read_the_files(tmp_path, save_all, state_of):
    safetensors = pytest.importorskip("safetensors.torch")
    save_all(tmp_path, 2)
    found = safetensors.load_file(tmp_path / "step-0000000005" / "r1.safetensors")
    assert torch.equal(found["models.m.w"], state_of(1, 2)[0]["models"]["m"]["w"])


def test_the_same_step_again_replaces_the_older_one(tmp_path, save_all):
    save_all(tmp_path, 2, value=1.0)
    save_all(tmp_path, 4, value=2.0)
    assert only(tmp_path) == ["step-0000000005"]
    tree, fields = load(tmp_path / "step-0000000005")
    assert tree["optimizers"][0]["state"][0]["step"] == 2 and fields["world"] == 4
    assert not (tmp_path / "step-0000000005" / "r0.json").exists()


def test_a_save_of_an_earlier_life_is_not_mixed_in(tmp_path, save_all):
    """Rank 1 had written its part when rank 0 was killed; the next life saves the same step."""
    save_all(tmp_path, 2, value=1.0, missing={0: ""})
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".tmp") and (left / "r1.json").exists()
    save_all(tmp_path, 2, value=2.0)
    tree, _ = load(tmp_path / "step-0000000005")
    assert torch.equal(tree["models"]["m"]["w"], torch.arange(28.0).reshape(7, 4) * 2)


@pytest.mark.parametrize("cause", ["No space left on device", ""])
def test_a_rank_that_cannot_write_ends_the_save_for_all(tmp_path, save_all, cause):
    save_all(tmp_path, 3, step=4)
    began = time.monotonic()
    outcomes = save_all(tmp_path, 3, step=5, missing={1: cause}, patience=0.3)
    assert time.monotonic() - began < 10
    # It has done its part and went on, or came too late for that.
    assert isinstance(outcomes[2], WrittenCheckpoint) or "was given up before rank 2" in str(
        outcomes[2]
    )
    assert isinstance(outcomes[0], CheckpointError)
    reported = cause or "nothing was heard from it for 0 s"
    assert f"step 5 is given up because of rank 1: {reported}" in str(outcomes[0])
    assert only(tmp_path) == ["step-0000000004"]
    assert newest(tmp_path).step == 4


def test_a_full_disk_on_one_rank_is_named(tmp_path, save_all, monkeypatch):
    save_all(tmp_path, 2, step=4)
    write = storage._write

    def full(file, named, structure):
        if os.path.basename(file.name).startswith("r1."):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, named, structure)

    monkeypatch.setattr(storage, "_write", full)
    first, second = save_all(tmp_path, 2, step=5)
    assert "because of rank 1: No space left on device" in str(first)
    assert "on rank 1: No space left on device" in str(second)
    assert newest(tmp_path, rank=1).step == 4


def test_a_rank_that_comes_late_is_reported_that_it_is_over(tmp_path, save_all):
    store = distributed.HashStore()
    save_all(tmp_path, 2, store=store, missing={1: ""}, patience=0.1)
    (late,) = save_all(tmp_path, 2, store=store, missing={0: ""})[1:]
    assert "was given up before rank 1 had written" in str(late)
    assert only(tmp_path) == []


def test_parts_that_do_not_make_up_a_tensor_are_refused(tmp_path):
    place = PartPlace((8,), (0,), (4,))
    with pytest.raises(CheckpointError, match=r"hold 4 of the 8 elements of models\.m\.w \[8\]"):
        save({"models": {"m": {"w": torch.ones(4)}}}, 5, folder=tmp_path,
             places={"models.m.w": place})  # fmt: skip
    assert only(tmp_path) == []


def test_a_tensor_that_nobody_writes_is_named(tmp_path, save_all):
    """Only one rank has it, and by its name it would be another's to write."""

    def more(rank, tree):
        if rank == 0:
            tree["optimizers"][0]["state"] |= {i: {"step": torch.ones(())} for i in range(1, 9)}

    first, _ = save_all(tmp_path, 2, change=more)
    assert "and left it to another rank, which has none" in str(first)


def test_a_store_that_is_gone_is_not_needed_for_the_end(tmp_path, state_of):
    class Gone:
        def compare_set(self, *_):
            return b"token"

        def check(self, *_):
            raise RuntimeError("connection reset by peer")

    for rank in (1, 0):
        tree, places = state_of(rank, 2)
        save(tree, 5, rank=rank, world=2, store=Gone(), folder=tmp_path, places=places)
    assert newest(tmp_path).step == 5


def test_several_ranks_need_a_store(tmp_path):
    with pytest.raises(CheckpointError, match="2 ranks cannot save together without the store"):
        save({"w": torch.ones(1)}, 5, world=2, folder=tmp_path)


def test_meta_data_that_is_no_json_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be written as JSON"):
        save({"w": torch.ones(1)}, 5, folder=tmp_path, meta={"thing": object()})
    assert only(tmp_path) == []


def test_death_between_any_two_calls_leaves_a_good_one(tmp_path, save_all, monkeypatch):
    """The older one or the newer one of a step is found, wherever the renames stop."""

    renames = Path.rename
    for stop in range(3):
        folder = tmp_path / str(stop)
        save_all(folder, 2, value=1.0)
        calls = 0

        def rename(path, target, stop=stop):
            nonlocal calls
            calls += 1
            if calls > stop:
                raise KeyboardInterrupt
            return renames(path, target)

        monkeypatch.setattr(Path, "rename", rename)
        monkeypatch.setattr("threading.excepthook", lambda _: None)
        save_all(folder, 2, value=2.0)
        monkeypatch.undo()
        entry = newest(folder)
        value = load(entry.path)[0]["optimizers"][0]["state"][0]["step"].item()
        assert value == (2.0 if stop == 2 else 1.0), stop
        save_all(folder, 2, value=3.0)
        assert load(newest(folder).path)[0]["models"]["m"]["mean"][1] == 3.0
