"""One plain file from the files of many ranks."""

from __future__ import annotations

import json
import weakref

import pytest
import torch

from holdfast.checkpoint.sharded import export as module
from holdfast.checkpoint.sharded.export import export_tensors
from holdfast.errors import CheckpointError, DamagedCheckpointError

safetensors = pytest.importorskip("safetensors.torch")


@pytest.fixture
def folder(tmp_path, save_all):
    save_all(tmp_path, 4)
    return tmp_path / "step-0000000005"


def test_all_tensors_whole(folder, tmp_path, tensors_of):
    target = tmp_path / "all.safetensors"
    count = export_tensors(folder, target)
    found = safetensors.load_file(target)
    assert len(found) == count == 7
    for name, tensor in tensors_of().items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
    assert found["models.m.mean"].tolist() == [0.0, 1.0]  # that of rank 0
    assert not list(tmp_path.glob("*.tmp"))


def test_a_part_by_its_name(folder, tmp_path):
    export_tensors(folder, tmp_path / "m.safetensors", part="models.m.")
    assert sorted(safetensors.load_file(tmp_path / "m.safetensors")) == [
        "half",
        "mean",
        "none",
        "w",
    ]
    with pytest.raises(
        CheckpointError, match=r"no tensors below models\.x\.; it has dice\.torch, m"
    ):
        export_tensors(folder, tmp_path / "x.safetensors", part="models.x.")


def test_one_tensor_is_in_memory_at_a_time(folder, tmp_path, monkeypatch):
    alive: list[int] = []
    most = 0
    joined = module._joined

    def counted(*args):
        nonlocal most
        tensor = joined(*args)
        alive.append(1)
        most = max(most, len(alive))
        weakref.finalize(tensor, alive.pop)
        return tensor

    monkeypatch.setattr(module, "_joined", counted)
    export_tensors(folder, tmp_path / "all.safetensors")
    assert most == 1


def test_damage_leaves_no_file(folder, tmp_path, flip):
    chunks = json.loads((folder / "index.json").read_text())["chunks"]["models.m.w"]
    flip(folder / "r3.safetensors", chunks[3][3])
    with pytest.raises(DamagedCheckpointError, match=r"in r3\.safetensors, the data of rank 3"):
        export_tensors(folder, tmp_path / "all.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_a_single_file_too(put, tmp_path):
    written = put(3)
    export_tensors(written.path, tmp_path / "one.safetensors", part="models.model.")
    assert sorted(safetensors.load_file(tmp_path / "one.safetensors")) == ["bias", "weight"]
