"""Places of local parts, read from DTensors of one rank of a group that is only pretended."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from holdfast.checkpoint.sharded.places import (
    SMALL,
    PartPlace,
    common_place,
    place_of,
    places_in,
    sharded_like,
    trained,
)
from holdfast.errors import CheckpointError
from holdfast.shards import local


@contextlib.contextmanager
def as_rank(rank, *shape):
    """This process as one rank of a mesh; nothing is ever sent."""
    world = torch.Size(shape).numel()
    distributed.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield init_device_mesh("cpu", shape)
    finally:
        distributed.destroy_process_group()


def sharded(mesh, shape, *placements):
    local = torch.zeros(shape)
    for dimension, placement in enumerate(placements):
        if isinstance(placement, Shard):
            parts = local.chunk(mesh.size(dimension), placement.dim)
            at = mesh.get_local_rank(dimension)
            local = parts[at] if at < len(parts) else local.narrow(placement.dim, 0, 0)
    size = torch.Size(shape)
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=size, stride=torch.zeros(size).stride()
    )


@pytest.mark.parametrize(("rank", "begin", "rows"), [(0, 0, 2), (2, 4, 2), (3, 6, 1)])
def test_uneven_rows(rank, begin, rows):
    with as_rank(rank, 4) as mesh:
        tensor = sharded(mesh, (7, 4), Shard(0))
        assert place_of(tensor) == PartPlace((7, 4), (begin, 0), (rows, 4))
        assert local(tensor).shape == (rows, 4)


def test_a_rank_without_a_row():
    with as_rank(3, 4) as mesh:
        place = place_of(sharded(mesh, (3, 4), Shard(0)))
        assert place is not None and place.size == (0, 4)


def test_another_dimension():
    with as_rank(1, 2) as mesh:
        assert place_of(sharded(mesh, (3, 6), Shard(1))) == PartPlace((3, 6), (0, 3), (3, 3))


def test_replicas_know_each_other_and_share_the_work():
    """HSDP on two by two ranks: the first dimension of the mesh replicates."""
    places = []
    for rank in range(4):
        with as_rank(rank, 2, 2) as mesh:
            places.append(place_of(sharded(mesh, (8,), Replicate(), Shard(0))))
    assert [(p.offset, p.replica, p.replicas) for p in places] == [
        ((0,), 0, 2), ((4,), 0, 2), ((0,), 1, 2), ((4,), 1, 2)
    ]  # fmt: skip
    for name in ("a", "b", "c", "d"):
        assert sum(place.writes(name) for place in places) == 2  # one of each half
    assert len({places[0].writes(f"w{i}") for i in range(20)}) == 2


def test_two_dimensions_at_once():
    with as_rank(3, 2, 2) as mesh:
        assert place_of(sharded(mesh, (4, 6), Shard(0), Shard(1))) == PartPlace(
            (4, 6), (2, 3), (2, 3)
        )


def test_a_sum_that_is_not_made_is_refused_by_name():
    with as_rank(0, 2) as mesh:
        tensor = DTensor.from_local(torch.ones(2), mesh, [Partial()], run_check=False)
        with pytest.raises(CheckpointError, match=r"models\.m\.w is a sum that is not made yet"):
            places_in({"models": {"m": {"w": tensor}}})


def test_other_tensors_have_no_place():
    assert place_of(torch.ones(2)) is None
    assert places_in({"w": torch.ones(2)}) == {}


def test_which_plain_tensors_are_common():
    small, large = torch.ones(2), torch.empty(SMALL + 4, dtype=torch.uint8)
    names = {"models.m.w"}

    def is_common(name, tensor):
        return common_place(name, tensor, 1, 2, names) is not None

    assert is_common("models.m.w", small)  # a parameter
    assert not is_common("models.m.running_mean", small)  # FSDP2 does not synchronise it
    assert is_common("models.m.table", large)
    assert is_common("optimizers.0.state.0.step", small)
    assert not is_common("dice.torch", small) and not is_common("gradients.0.0", large)
    assert common_place("models.m.w", small, 1, 2, names) == PartPlace((2,), (0,), (2,), 1, 2)


def test_the_names_of_trained_parameters():
    assert trained({"optimizers": [{"parameters": [["m.w", "float32", (2,)]]}]}) == {"models.m.w"}
    assert trained({"w": torch.ones(1)}) == set()


def test_state_of_an_optimizer_is_sharded_as_its_parameter():
    with as_rank(1, 2) as mesh:
        weight = sharded(mesh, (4,), Shard(0))
        tree = {
            "models": {"m": {"b": torch.ones(1), "w": weight}},
            "optimizers": [{"parameters": [["m.b", "float32", (1,)], ["m.w", "float32", (4,)]]}],
        }
        like = sharded_like(tree)
    assert set(like) == {"models.m.w", "optimizers.0.state.1", "gradients.0.1"}
    assert all(one is weight for one in like.values())
