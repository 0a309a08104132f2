"""Which loops have losses that can be compared over time, as the engine sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from holdfast.config import Settings, load
from holdfast.guard.engine import Engine
from holdfast.probes import comparable

from .conftest import MakeEngine

Loop = Callable[[], None]


def data(count: int = 640) -> TensorDataset:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x.sum(1, keepdim=True))


def train(batches: Iterator[Any], net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()


def regression() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    return net, torch.optim.SGD(net.parameters(), lr=0.01)


def from_a_loader() -> None:
    net, optimizer = regression()
    loader = DataLoader(data(), batch_size=16, shuffle=True)
    for _ in range(4):
        train(iter(loader), net, optimizer)
        with torch.no_grad():
            for x, _ in DataLoader(data(64), batch_size=16):
                net(x)


def accumulated() -> None:
    net, optimizer = regression()
    other = torch.optim.SGD([net.bias], lr=0.01)  # type: ignore[list-item]
    loader = DataLoader(data(), batch_size=8)
    for _ in range(2):
        for i, (x, y) in enumerate(loader):
            nn.functional.mse_loss(net(x), y).backward()
            if i % 4 == 3:
                optimizer.step()
                other.step()
                optimizer.zero_grad()


def own_data() -> None:
    net, optimizer = regression()
    train(((x, x.sum(1, keepdim=True)) for x in torch.randn(80, 16, 4)), net, optimizer)


def own_data_and_a_loader_to_validate() -> None:
    net, optimizer = regression()
    for _ in range(4):
        with torch.no_grad():
            for x, _ in DataLoader(data(64), batch_size=16):
                net(x)
        train(((x, x.sum(1, keepdim=True)) for x in torch.randn(40, 16, 4)), net, optimizer)


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Any]:
        return iter(data())


def stream() -> None:
    train(iter(DataLoader(Stream(), batch_size=8)), *regression())


class Memory(Dataset[Any]):
    """A replay memory: what is seen is added to."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.rows[index], self.rows[index].sum(0, keepdim=True)


def replay_memory() -> None:
    net, optimizer = regression()
    memory = Memory()
    for _ in range(10):
        memory.rows += list(torch.randn(32, 4))
        train(iter(DataLoader(memory, batch_size=16)), net, optimizer)


def rollouts() -> None:
    """The data of each pass is made anew, as on-policy methods do."""
    net, optimizer = regression()
    for _ in range(5):
        train(iter(DataLoader(data(320), batch_size=16, shuffle=True)), net, optimizer)


def adversaries(*, together: bool = False) -> None:
    generator, g = regression()
    critic = nn.Linear(4, 1)
    c = torch.optim.SGD(critic.parameters(), lr=0.01)
    for x, _ in DataLoader(data(), batch_size=16):
        c.zero_grad()
        g.zero_grad()
        made = generator(x) * x
        (critic(made.detach()).mean() - critic(x).mean()).backward()
        if not together:
            c.step()
        (-critic(made).mean()).backward()
        if together:
            c.step()
        g.step()


def adversaries_together() -> None:
    adversaries(together=True)


def answers(engine: Engine) -> list[str]:
    engine.close()
    assert not engine.off
    return [event["why"] for event in engine.memory.of_kind("comparable")]  # type: ignore[attr-defined]


@pytest.mark.parametrize("loop", [from_a_loader, accumulated])
def test_losses_can_be_compared(make_engine: MakeEngine, loop: Loop) -> None:
    engine = make_engine()
    loop()
    assert engine.state.training.comparability.holds
    assert answers(engine) == []


@pytest.mark.parametrize(
    ("loop", "why"),
    [
        (own_data, comparable.OWN_DATA),
        (own_data_and_a_loader_to_validate, comparable.OWN_DATA),
        (stream, comparable.STREAM),
        (replay_memory, "the dataset grew from"),
        (rollouts, comparable.REPLACED),
        (adversaries, comparable.PAIR),
        (adversaries_together, comparable.PAIR),
    ],
)
def test_losses_cannot_be_compared(make_engine: MakeEngine, loop: Loop, why: str) -> None:
    engine = make_engine()
    loop()
    assert not engine.state.training.comparability.holds
    assert why in answers(engine)[-1]


def test_another_dataset_is_trusted_once_a_baseline_is_made_of_it(make_engine: MakeEngine) -> None:
    engine = make_engine()
    net, optimizer = regression()
    train(iter(DataLoader(data(320), batch_size=8)), net, optimizer)
    train(iter(DataLoader(data(8 * 80), batch_size=8)), net, optimizer)
    assert answers(engine) == [comparable.REPLACED, ""]


def test_nothing_is_read(make_engine: MakeEngine) -> None:
    """The answer is the same where the guard decides on the device."""
    engine = make_engine(device_path=True)
    adversaries()
    assert not engine.state.training.comparability.holds


def stages(settings: Settings, make_engine: MakeEngine) -> tuple[Engine, Tensor]:
    """The same dataset gets harder with its second pass."""
    engine = make_engine(settings)
    net, optimizer = regression()
    samples = data(8 * 80)
    loader = DataLoader(samples, batch_size=8)
    train(iter(loader), net, optimizer)
    samples.tensors[1].mul_(1000.0)
    train(iter(loader), net, optimizer)
    engine.close()
    return engine, net.weight.detach()  # type: ignore[operator]


def test_a_stage_that_begins_with_a_pass_is_not_skipped(make_engine: MakeEngine) -> None:
    engine, weight = stages(Settings(), make_engine)
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert rows["outlier"][80] == 3
    # The batch that older weights were tried on is the only step that was not taken.
    replayed = len(engine.memory.of_kind("trial"))  # type: ignore[attr-defined]
    assert (rows["skipped"] > 0).sum() == replayed
    _, plain = stages(load(None, ["policy.ALL=observe"]), make_engine)
    assert torch.equal(weight, plain)


def explodes(settings: Settings, make_engine: MakeEngine, *, fed: bool) -> list[int]:
    engine = make_engine(settings)
    net, optimizer = regression()
    batches = list(DataLoader(data(), batch_size=8))
    feed = iter(DataLoader(data(), batch_size=8)) if fed else iter(batches)
    for step, (x, y) in enumerate(feed):
        train(iter([(x, y * (1e4 if step == 60 else 1.0))]), net, optimizer)
    engine.close()
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    return rows["step"][rows["skipped"] > 0].tolist()


def test_a_finite_step_is_skipped_only_where_losses_compare(make_engine: MakeEngine) -> None:
    assert explodes(Settings(), make_engine, fed=True) == [60]
    assert explodes(Settings(), make_engine, fed=False) == []
    asked = load(None, ["policy.OPT002=skip"])
    assert explodes(asked, make_engine, fed=False) == [60]
