"""A loss that one rank of several computes once more: nobody else may be needed for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from holdfast.diagnosis.nonfinite import by_itself
from holdfast.source.slices import NotRepeatable


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[DistributedDataParallel]:
    # No threads: gloo's, freeing its last tensors, may wait for an interpreter that waits for
    # it (torch 2.13).
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    monkeypatch.setattr(by_itself, "ranks", lambda: 2)
    try:
        yield DistributedDataParallel(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    finally:
        dist.destroy_process_group()


def test_the_model_inside_is_called_and_nothing_of_its_wrapper(model, monkeypatch):
    called: list[str] = []
    monkeypatch.setattr(model, "_pre_forward", lambda *a, **k: called.append("wrapper") or (a, k))
    monkeypatch.setattr(model, "_post_forward", lambda output: output)
    x = torch.randn(8, 3)
    with by_itself.by_itself():
        alone = model(x)
    assert not called and alone.shape == (8, 2)
    model(x)
    assert called == ["wrapper"], "it is used again afterwards"
    assert "forward" not in vars(model)


@pytest.mark.parametrize("how", ["all_reduce", "broadcast"])
def test_a_collective_is_refused_before_it_waits(model, how: str):
    value = torch.ones(2)
    with pytest.raises(NotRepeatable, match="needs the other ranks"), by_itself.by_itself():
        dist.all_reduce(value) if how == "all_reduce" else dist.broadcast(value, 0)
    assert "forward" not in vars(model)
    dist.all_reduce(value)


def test_sharded_models_are_not_touched(model):
    class FSDPModule(nn.Linear):
        """Stands for what ``fully_shard`` makes of a module."""

    kept = FSDPModule(2, 2)
    with pytest.raises(NotRepeatable, match="sharded"), by_itself.by_itself():
        pytest.fail("it must not be computed")
    del kept


def test_one_rank_needs_none_of_it(model, monkeypatch):
    monkeypatch.setattr(by_itself, "ranks", lambda: 1)
    with by_itself.by_itself():
        dist.all_reduce(torch.ones(1))
