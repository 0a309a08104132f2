"""What a rank records to be compared with others: without a collective, without a host read."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from .conftest import MakeEngine
from .test_no_host_reads import no_reads

__all__ = ["no_reads"]


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process group of two, of which this process would be one: it must never ask the other."""
    for room in ("hooks.loader", "hooks.optimizer", "step_window", "step_writer"):
        monkeypatch.setattr(f"holdfast.guard.{room}.ranks", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "gloo")


def train(steps: int, seen: list[str] | None = None) -> None:
    """Train; reads of the first steps, in which memory is pinned, do not count."""
    torch.manual_seed(0)
    net = nn.Linear(8, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(8 * steps, 8)), batch_size=8)
    for i, (x,) in enumerate(loader):
        if i == 3 and seen is not None:
            seen.clear()
        net(x).square().mean().backward()
        opt.step()
        opt.zero_grad()


def rows(engine: object, name: str) -> list[bytes]:
    memory = engine.memory  # type: ignore[attr-defined]
    number = memory.tables.get(name)
    return [payload for kind, payload in memory.ring.records if kind == number]


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("device_path", [False, True])
def test_weights_are_summed_on_the_same_steps(
    make_engine: MakeEngine, no_reads: list[str], device_path: bool
) -> None:
    engine = make_engine(device_path=device_path, explain=False)
    train(130, no_reads)
    assert no_reads == [] or not device_path
    engine.close()
    assert not engine.off
    steps = [int.from_bytes(row[:8], "little") for row in rows(engine, "weights0")]
    assert steps == [0, 64, 128]
    (facts,) = engine.memory.of_kind("parallel")  # type: ignore[attr-defined]
    assert (facts["group"], facts["batch_size"], facts["wrapper"]) == (2, 8, "")
    reported = engine.memory.events  # type: ignore[attr-defined]
    assert [event for event in reported if event[0] == "pass_ends"] == [
        ("pass_ends", 130, {"number": 1, "samples": 8})
    ]


def test_one_rank_records_nothing_of_it(make_engine: MakeEngine) -> None:
    engine = make_engine(explain=False)
    train(70)
    engine.close()
    assert "weights0" not in engine.memory.tables  # type: ignore[attr-defined]
    assert not engine.memory.of_kind("parallel")  # type: ignore[attr-defined]
    assert not engine.memory.of_kind("pass_ends")  # type: ignore[attr-defined]
