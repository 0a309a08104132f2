"""The storage under torch's own dcp.save and dcp.load."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from holdfast.checkpoint.record import verify
from holdfast.checkpoint.sharded.storage import FolderReader, FolderWriter
from holdfast.errors import CheckpointError, DamagedCheckpointError


def quietly(call, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that this is one process
        return call(*args, **kwargs)


def test_save_and_load_with_torch(tmp_path, flip):
    folder = tmp_path / "step-0000000007"
    state = {
        "a": {"w": torch.arange(6.0).reshape(2, 3)},
        "b": torch.tensor([1 + 2j]),
        "n": torch.ones(()),
    }
    quietly(dcp.save, state, storage_writer=FolderWriter(folder, meta={"step": 7}))
    assert sorted(p.name for p in folder.iterdir()) == ["index.json", "r0.safetensors"]
    verify(folder)
    fresh = {
        "a": {"w": torch.zeros(2, 3)},
        "b": torch.zeros(1, dtype=torch.complex64),
        "n": torch.zeros(()),
    }
    quietly(dcp.load, fresh, storage_reader=FolderReader(folder))
    assert torch.equal(fresh["a"]["w"], state["a"]["w"])
    assert torch.equal(fresh["b"], state["b"]) and fresh["n"] == 1
    flip(folder / "r0.safetensors", -1)
    with pytest.raises(CheckpointException, match=r"has changed, in r0\.safetensors"):
        quietly(dcp.load, fresh, storage_reader=FolderReader(folder))


def test_what_would_be_pickled_is_refused(tmp_path):
    with pytest.raises(CheckpointException, match="step is no tensor and would be pickled"):
        quietly(dcp.save, {"step": 7}, storage_writer=FolderWriter(tmp_path / "step-0000000007"))
    assert not list(tmp_path.rglob(".metadata"))


def test_a_pickled_index_is_never_read(tmp_path):
    folder = tmp_path / "step-0000000007"
    quietly(dcp.save, {"w": torch.ones(2)}, checkpoint_id=folder)  # torch's own form
    assert (folder / ".metadata").exists()
    with pytest.raises(CheckpointError) as error:
        FolderReader(folder).read_metadata()
    assert not isinstance(error.value, DamagedCheckpointError) or "index.json" in str(error.value)
