"""Read for live objects that are sharded, in one process that pretends to be a rank."""

from __future__ import annotations

import contextlib

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from holdfast.checkpoint.file import save
from holdfast.checkpoint.sharded.live import load_for
from holdfast.checkpoint.tree import flatten


@contextlib.contextmanager
def as_rank(rank, world):
    distributed.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (world,))
    finally:
        distributed.destroy_process_group()


def live(mesh):
    """A fresh state: the weight is sharded, the optimizer has made nothing yet."""
    weight = distribute_tensor(torch.zeros(7, 4), mesh, [Shard(0)], src_data_rank=None)
    return {
        "models": {"m": {"w": weight, "mean": torch.zeros(2)}},
        "optimizers": [{"parameters": [["m.w", torch.float32, (7, 4)]], "state": {}}],
    }


def test_local_parts_come_as_dtensors_and_new_moments_as_their_parameter(
    tmp_path, save_all, state_of
):
    save_all(tmp_path, 4)
    for rank in range(2):
        wanted, _ = state_of(rank, 2)
        with as_rank(rank, 2) as mesh:
            tree, fields = load_for(live(mesh), tmp_path / "step-0000000005", rank=rank)
        weight, moment = tree["models"]["m"]["w"], tree["optimizers"][0]["state"][0]["exp_avg"]
        for found, part in (
            (weight, wanted["models"]["m"]["w"]),
            (moment, wanted["optimizers"][0]["state"][0]["exp_avg"]),
        ):
            assert isinstance(found, DTensor) and found.shape == (7, 4)
            assert found.dtype == part.dtype and torch.equal(found._local_tensor, part)
        assert type(tree["models"]["m"]["half"]) is torch.Tensor  # not sharded here: whole
        assert tree["models"]["m"]["half"].shape == (7,)
        assert tree["models"]["m"]["mean"].tolist() == [float(rank), 1.0]
        assert fields["world"] == 4


def test_a_single_file_is_cut(tmp_path):
    """Saved by one process without sharding, resumed by two with it."""
    whole = torch.arange(28.0).reshape(7, 4)
    tree = {
        "models": {"m": {"w": whole, "mean": torch.ones(2)}},
        "optimizers": [{"parameters": [], "state": {0: {"exp_avg": whole * 2, "step": 3}}}],
    }
    path = tmp_path / "step-0000000005.r0.safetensors"
    save(path, *flatten(tree), {"step": 5})
    with as_rank(1, 2) as mesh:
        got, _ = load_for(live(mesh), path, rank=1)
    assert torch.equal(got["models"]["m"]["w"]._local_tensor, whole[4:])
    assert torch.equal(got["optimizers"][0]["state"][0]["exp_avg"]._local_tensor, whole[4:] * 2)
    assert got["models"]["m"]["mean"].tolist() == [1.0, 1.0]
