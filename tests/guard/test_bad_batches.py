"""A poisoned sample in a real loop: named, written down, and left out of later epochs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from holdfast.boot import patches
from holdfast.config import (
    GuardSettings,
    QuarantineSettings,
    RuleSettings,
    ScalerSettings,
    Settings,
)
from holdfast.errors import Stopped
from holdfast.guard.engine import Engine
from holdfast.guard.hooks import loader as loader_hooks
from holdfast.guard.optimizer_guard import OptimizerGuard

from .conftest import MakeEngine, MemoryRecorder

NAN = float("nan")
POISONED = 13
EPOCHS = 3

Make = Callable[..., tuple[Engine, MemoryRecorder]]


@pytest.fixture
def make() -> Iterator[Make]:
    """``make(quarantine={"skip": True}, scaler={...}, guard={...})`` installs an engine."""
    current: list[Engine] = []
    patches.install(lambda: current[-1] if current else None)

    def made(
        quarantine: Any = None, scaler: Any = None, guard: Any = None, policy: Any = None
    ) -> tuple[Engine, MemoryRecorder]:
        settings = Settings(
            policy=policy or {},
            guard=GuardSettings(**(guard or {})),
            quarantine=QuarantineSettings(**(quarantine or {})),
            scaler=ScalerSettings(**(scaler or {})),
        )
        recorder = MemoryRecorder()
        current.append(Engine(settings, lambda: recorder))  # type: ignore[arg-type,return-value]
        return current[-1], recorder

    yield made
    patches.uninstall()


class Pictures(Dataset[Any]):
    """Knows its files, as an ImageFolder does."""

    def __init__(self, count: int = 32, value: float = NAN) -> None:
        generator = torch.Generator().manual_seed(0)
        self.samples = [(f"class/{i:03d}.png", i % 2) for i in range(count)]
        self.pixels = torch.rand(count, 4, generator=generator) + 0.5
        self.pixels[POISONED, 0] = value

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.pixels[index], torch.tensor([float(self.samples[index][1])])


def train(
    loader: DataLoader[Any], *, scaler: Any = None, loss_of: Any = None, accumulate: int = 1
) -> list[list[int]]:
    """Train for EPOCHS; returns the sizes of the batches of each epoch."""
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    sizes: list[list[int]] = []
    for _ in range(EPOCHS):
        sizes.append([])
        for i, (x, y) in enumerate(loader):
            sizes[-1].append(len(x))
            loss = (net(x) - y).square().mean() if loss_of is None else loss_of(net, x, y)
            if scaler is None:
                loss.backward()
            else:
                scaler.scale(loss).backward()
            if (i + 1) % accumulate:
                continue
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
        assert all(bool(p.isfinite().all()) for p in net.parameters())
    return sizes


def bad_steps(recorder: MemoryRecorder) -> int:
    rows = recorder.rows()
    return int(((rows["skipped"] > 0) | (rows["scaler_skipped"] > 0)).sum())


def close(engine: Engine, recorder: MemoryRecorder) -> None:
    engine.close()
    assert not engine.off, recorder.of_kind("holdfast_error")


@pytest.mark.parametrize("device_path", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_poisoned_sample_is_named_with_its_file(
    make: Make, accumulate: int, device_path: bool
) -> None:
    engine, recorder = make(guard={"device_path": device_path, "replay": False})
    train(DataLoader(Pictures(), 8, shuffle=True), accumulate=accumulate)
    close(engine, recorder)
    (sample,) = recorder.of_kind("quarantine")
    assert sample["index"] == sample["sample"] == POISONED
    assert sample["file"] == f"class/{POISONED:03d}.png"
    assert sample["dataset"] == "Pictures"
    assert sample["length"] == 32
    assert sample["tensor"] == "batch[0]"
    assert sample["worker"] == -1
    assert not sample["skip"]
    assert bad_steps(recorder) == EPOCHS, "it is drawn in every epoch"
    assert not recorder.of_kind("quarantine_kept_out")


@pytest.mark.parametrize("workers", [0, 2])
def test_on_request_it_is_left_out_of_later_epochs(make: Make, workers: int) -> None:
    engine, recorder = make(quarantine={"skip": True}, guard={"replay": False})
    sizes = train(DataLoader(Pictures(), 8, shuffle=True, num_workers=workers))
    close(engine, recorder)
    assert bad_steps(recorder) == 1
    assert sum(sizes[0]) == 32
    assert [sum(epoch) for epoch in sizes[1:]] == [31, 31]
    assert recorder.of_kind("quarantine_kept_out") == [{"times": EPOCHS - 1}]


def test_full_batches_stay_full(make: Make) -> None:
    engine, recorder = make(quarantine={"skip": True})
    sizes = train(DataLoader(Pictures(), 8, shuffle=True, drop_last=True))
    close(engine, recorder)
    assert {size for epoch in sizes for size in epoch} == {8}
    assert bad_steps(recorder) <= 2, "once, and once more for the exam"


def test_a_batch_that_would_be_empty_is_drawn_anew(make: Make) -> None:
    engine, recorder = make(quarantine={"skip": True}, guard={"replay": False})
    sizes = train(DataLoader(Pictures(), 1))
    close(engine, recorder)
    assert [len(epoch) for epoch in sizes] == [32, 31, 31]
    assert bad_steps(recorder) == 1


def test_the_last_batch_may_be_the_empty_one(make: Make) -> None:
    engine, recorder = make(quarantine={"skip": True}, guard={"replay": False})
    sizes = train(DataLoader(Pictures(POISONED + 1), 1))
    close(engine, recorder)
    assert [len(epoch) for epoch in sizes] == [POISONED + 1, POISONED, POISONED]


def test_with_several_ranks_every_batch_keeps_its_length(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, recorder = make(quarantine={"skip": True}, guard={"explain": False})
    monkeypatch.setattr(loader_hooks, "ranks", lambda: 2)
    sizes = train(DataLoader(Pictures(), 5, shuffle=True))
    close(engine, recorder)
    assert sizes == [[5] * 6 + [2]] * EPOCHS
    assert bad_steps(recorder) == 1


def test_a_sample_that_makes_such_values_is_named_by_the_exam(make: Make) -> None:
    """It holds a plain zero; the logarithm makes the infinity."""
    engine, recorder = make(quarantine={"skip": True})

    def loss_of(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (net(torch.log(x)) - y).square().mean()

    train(DataLoader(Pictures(value=0.0), 8, shuffle=True), loss_of=loss_of)
    close(engine, recorder)
    (sample,) = recorder.of_kind("quarantine")
    assert sample["index"] == POISONED
    assert sample["file"] == f"class/{POISONED:03d}.png"
    assert sample["reason"].startswith("log at ")
    assert "makes non-finite values" in sample["reason"]
    assert bad_steps(recorder) <= 2


def test_a_batch_of_suspects_is_no_quarantine(make: Make) -> None:
    """The line is at fault, not the data: every row of the batch is infinite."""
    engine, recorder = make(quarantine={"skip": True})

    def loss_of(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (net(x) - y).square().mean() / (x[:, 1] > 0.9).sum()

    pictures = Pictures(value=1.0)
    pictures.pixels[8:16, 1] = 0.0
    sizes = train(DataLoader(pictures, 8), loss_of=loss_of)
    close(engine, recorder)
    assert bad_steps(recorder) >= EPOCHS
    assert not recorder.of_kind("quarantine")
    assert all(sum(epoch) >= 32 for epoch in sizes)


def test_indices_that_are_tensors_do_no_harm(make: Make) -> None:
    engine, recorder = make(quarantine={"skip": True}, guard={"replay": False})
    sampler: Any = torch.randperm(32, generator=torch.Generator().manual_seed(1))
    sizes = train(DataLoader(Pictures(), 8, sampler=sampler))
    close(engine, recorder)
    assert [s["index"] for s in recorder.of_kind("quarantine")] == [POISONED]
    assert [sum(epoch) for epoch in sizes] == [32, 31, 31]


def test_a_step_that_a_scaler_left_out_is_searched_too(make: Make) -> None:
    engine, recorder = make(quarantine={"skip": True})
    train(DataLoader(Pictures(), 8), scaler=torch.amp.GradScaler("cpu", init_scale=1.0))
    close(engine, recorder)
    assert [s["index"] for s in recorder.of_kind("quarantine")] == [POISONED]
    assert bad_steps(recorder) == 1


def test_a_failure_of_ours_costs_the_skip_and_nothing_else(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = make(quarantine={"skip": True}, guard={"replay": False})

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("holdfast.actions.quarantine.Quarantine.kept", broken)
    sizes = train(DataLoader(Pictures(), 8, shuffle=True))
    engine.close()
    assert engine.off == {"quarantine"}
    assert [sum(epoch) for epoch in sizes] == [32] * EPOCHS


def test_a_healthy_run_draws_as_ever(make: Make) -> None:
    """Nothing is looked at on a draw until there is something to leave out."""
    engine, recorder = make(quarantine={"skip": True})
    data = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
    assert train(DataLoader(data, 8)) == [[8, 8]] * EPOCHS
    close(engine, recorder)
    assert not engine.state.training.bad_batches.quarantine.skips


@pytest.mark.parametrize("device_path", [False, True])
@pytest.mark.parametrize("code", ["NUM005", "NUM001", "NUM002"])
def test_a_policy_on_bad_data_acts_on_bad_data(make: Make, code: str, device_path: bool) -> None:
    """Whose fault a bad step is must be known when the policy is asked."""
    policy = {code: RuleSettings(do=("stop",))}
    engine, recorder = make(policy=policy, guard={"device_path": device_path, "explain": False})
    loader = DataLoader(Pictures(), 8)
    if code != "NUM005":
        train(loader)
    else:
        with pytest.raises(Stopped, match="the policy says stop on NUM005"):
            train(loader)
    stops = [data["code"] for kind, _, data in recorder.events if kind == "stop"]
    assert stops == (["NUM005"] if code == "NUM005" else [])
    assert engine.off == set()


# ---------------------------------------------------------------- the scaler of a script


def overflowing(steps: set[int]) -> Any:
    """A loss that is infinite on some steps."""
    count = iter(range(1000))

    def loss_of(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = (net(x) - y).square().mean()
        return loss * math.inf if next(count) in steps else loss

    return loss_of


def scales(recorder: MemoryRecorder) -> list[float]:
    return [float(s) for s in recorder.rows()["scale"]]


def test_on_request_a_script_s_scaler_is_calm(make: Make) -> None:
    engine, recorder = make(scaler={"policy": True, "interval": 5}, guard={"explain": False})
    scaler = torch.amp.GradScaler("cpu")
    data = DataLoader(Pictures(value=1.0), 2)
    train(data, scaler=scaler, loss_of=overflowing({5, 6, 7, *range(10, 40)}))
    close(engine, recorder)
    seen = scales(recorder)
    assert seen[:9] == pytest.approx([1024.0] * 5 + [1536.0, 153.6, 15.36, 1.536])
    assert min(seen) == 1.0
    assert seen[-1] == 1.5, "it has begun to grow again"
    reported = [(event["what"], event["scale"]) for event in recorder.of_kind("scaler")]
    assert reported == [
        ("policy", 1024.0),
        *(("nonfinite", pytest.approx(scale)) for scale in (153.6, 15.36, 1.536, 1.0)),
    ], "at its floor there is nothing to tell"


def test_without_the_request_it_is_left_alone(make: Make) -> None:
    engine, recorder = make(guard={"explain": False})
    scaler = torch.amp.GradScaler("cpu")
    train(DataLoader(Pictures(value=1.0), 2), scaler=scaler, loss_of=overflowing(set(range(30))))
    close(engine, recorder)
    assert scales(recorder)[0] == 65536.0
    assert min(scales(recorder)) < 1.0
    assert scaler.get_growth_interval() == 2000


def test_an_explosion_lowers_the_scale_in_its_own_step(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, recorder = make(scaler={"policy": True})
    before = OptimizerGuard.before

    def judged(self: Any, optimizer: Any, parameters: Any, verdict: Any, *a: Any, **k: Any) -> None:
        before(self, optimizer, parameters, verdict, *a, **k)
        verdict.row["outlier"] = {3: 1.0, 4: 3.0, 5: 2.0}.get(verdict.step, 0.0)

    monkeypatch.setattr(OptimizerGuard, "before", judged)
    train(DataLoader(Pictures(value=1.0), 4), scaler=torch.amp.GradScaler("cpu"))
    close(engine, recorder)
    assert scales(recorder)[2:7] == pytest.approx([1024.0, 1024.0, 102.4, 10.24, 10.24])
    reported = [e for e in recorder.of_kind("scaler") if e["what"] == "explosion"]
    assert [e["scale"] for e in reported] == pytest.approx([102.4, 10.24])


def test_a_step_without_a_scaler_is_no_business_of_the_policy(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, recorder = make(scaler={"policy": True})
    before = OptimizerGuard.before

    def judged(self: Any, optimizer: Any, parameters: Any, verdict: Any, *a: Any, **k: Any) -> None:
        before(self, optimizer, parameters, verdict, *a, **k)
        verdict.row["outlier"] = 1.0

    monkeypatch.setattr(OptimizerGuard, "before", judged)
    train(DataLoader(Pictures(value=1.0), 4))
    close(engine, recorder)
    assert not recorder.of_kind("scaler")


def test_every_sample_of_a_cause_is_named(make_engine: MakeEngine) -> None:
    """A batch that holds none of the samples known so far must hold another one."""
    engine = make_engine(replay=False)
    torch.manual_seed(0)
    x = torch.rand(96, 4) + 0.5
    broken = [3, 20, 21, 50, 77, 90]
    x[broken] = 0.0
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    data = torch.utils.data.TensorDataset(x, torch.ones(96, 1))
    for _ in range(3):
        for a, b in torch.utils.data.DataLoader(data, batch_size=16):
            shape = a / a.sum(1, keepdim=True)
            loss = (net(shape) - b).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    engine.close()
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    causes = engine.memory.of_kind("cause")  # type: ignore[attr-defined]
    assert [sample for cause in causes for _, sample in cause["samples"]] == broken
    assert len(causes) == 5  # those of one batch together, and none twice
    kept = [event["sample"] for event in engine.memory.of_kind("quarantine")]  # type: ignore[attr-defined]
    assert kept == broken
