"""What is shared out over ranks, in one process: a group of one rank is enough for that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from holdfast.checkpoint.sharded.saving import save
from holdfast.checkpoint.training_state import TrainingState
from holdfast.errors import SettingsError
from holdfast.training import sharding
from holdfast.training.averaging import Average, AverageSettings
from holdfast.training.device import Place
from holdfast.training.parallel import put_in_place, unsynchronised
from holdfast.training.precision import Precision
from holdfast.training.settings import TrainSettings

CPU = torch.device("cpu")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mix(x).tanh()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 5), Block(), Block(), nn.Linear(5, 1))


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


def shared(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("shard",))
    for module in [*sharding.repeated_blocks(model).values(), model]:
        fully_shard(module, mesh=mesh)
    return model


def test_blocks_are_members_of_lists_that_are_alike_and_more_than_a_layer() -> None:
    other = nn.Module()
    other.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    other.towers = nn.ModuleDict({"a": net()})
    other.one = nn.ModuleList([Block()])
    assert list(sharding.repeated_blocks(net())) == ["1", "2"]
    assert list(sharding.repeated_blocks(other)) == ["towers.a.1", "towers.a.2"]


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"parallel": "fsd"}, "ddp"),
        ({"replicas": 2}, "set parallel=fsdp"),
        ({"parallel": "fsdp", "reduce_late": True}, "reduce_late goes with parallel=ddp"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    given: dict[str, object], reported: str
) -> None:
    with pytest.raises((SettingsError, ValueError), match=reported):
        TrainSettings(**given)  # type: ignore[arg-type]


def test_replicas_that_do_not_divide_the_ranks_are_refused_before_anything_is_sent() -> None:
    place = Place(CPU, rank=0, world=6)
    with pytest.raises(SettingsError, match="6 ranks cannot be divided; it may be 1, 2, 3, 6"):
        sharding.shard(net(), place, replicas=4)


def test_one_rank_shares_nothing() -> None:
    model, said = net(), list[str]()
    put_in_place(
        model,
        Place(CPU),
        Precision("fp32", CPU),
        said.append,
        kind="fsdp",
        replicas=1,
        blocks=(),
    )
    assert not sharding.is_sharded(model) and not said


@pytest.mark.usefixtures("group")
def test_gradients_of_a_window_are_reduced_with_its_last_pass() -> None:
    model = shared(net())
    with unsynchronised(model, True):
        model(torch.ones(3, 5)).sum().backward()
    assert all(p.grad is None for p in model.parameters())
    with unsynchronised(model, False):
        model(torch.ones(3, 5)).sum().backward()
    twice = net()
    (2 * twice(torch.ones(3, 5)).sum()).backward()
    for one, other in zip(model.parameters(), twice.parameters(), strict=True):
        assert torch.allclose(_whole(one.grad), other.grad)  # type: ignore[arg-type]


@pytest.mark.usefixtures("group")
def test_a_pass_after_other_weights_were_put_in_place_uses_its_own() -> None:
    """The whole model stays gathered after a pass without a backward one."""
    model = shared(net())
    average = Average(model, AverageSettings(decay=0.9))
    x = torch.ones(3, 5)
    with torch.no_grad():
        before = model(x)
        sharding.reshard(model)
        for parameter in model.parameters():
            parameter.add_(1.0)
        with average.in_place(model):
            assert torch.equal(model(x), before)
            sharding.reshard(model)
        assert not torch.allclose(model(x), before)


@pytest.mark.usefixtures("group")
def test_within_the_block_the_model_is_whole_and_afterwards_it_is_not() -> None:
    model = shared(net())
    x = torch.ones(3, 5, requires_grad=True)
    model(x).sum().backward()
    model.zero_grad()
    with sharding.whole(model):
        for _ in range(2):  # nothing is gathered again, a gradient can be taken
            (found,) = torch.autograd.grad(model(x).sum(), x)
            assert found.isfinite().all()
        assert not isinstance(next(model.parameters()), DTensor)
    assert all(isinstance(p, DTensor) for p in model.parameters())
    model(x).sum().backward()
    assert all(isinstance(p.grad, DTensor) for p in model.parameters())


@pytest.mark.usefixtures("group")
def test_a_sharded_state_is_saved_and_read_sharded_and_whole(tmp_path: Path) -> None:
    states = []
    for model in (net(), shared(net())):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        model(torch.ones(3, 5)).sum().backward()
        optimizer.step()
        average = Average(model, AverageSettings(decay=0.9))
        states.append(TrainingState({"model": model}, [optimizer], ema={"ema": average}))
    plain, sharded = states
    saved = save(sharded.state(gradients=True), 1, folder=tmp_path).path
    plain.put_back(plain.read(saved)[0])
    for parameter in sharded.models["model"].parameters():
        parameter.detach().zero_()
    sharded.optimizers[0].state.clear()
    sharded.put_back(sharded.read(saved)[0])
    for one, other in zip(
        plain.models["model"].parameters(), sharded.models["model"].parameters(), strict=True
    ):
        moments = [state.optimizers[0].state[p] for state, p in ((plain, one), (sharded, other))]
        assert isinstance(moments[1]["exp_avg"], DTensor)
        assert torch.equal(one, _whole(other))
        assert torch.equal(moments[0]["exp_avg"], _whole(moments[1]["exp_avg"]))


def _whole(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
