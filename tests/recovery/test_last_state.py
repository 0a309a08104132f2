"""The state of a run that ends early: which one is saved, and how plain PyTorch goes on from it."""

from __future__ import annotations

import copy
import gc
import math
import shutil
import signal
import weakref
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast
from holdfast.config import Settings, load
from holdfast.guard.engine import Engine
from holdfast.recovery import last_state

from ..guard.conftest import MakeEngine


def settings(folder: Path, *overrides: str) -> Settings:
    common = [f"checkpoint.dir={folder}", "rollback.every=8", "rollback.cost=1"]
    quiet = ["watchers.memory=false", "watchers.time=false"]
    return load(None, [*common, *quiet, *overrides])


class Crash(Exception):
    """What ends the script."""


class Task:
    """Batch norm and dropout, over a loader: a forward pass leaves traces and draws numbers."""

    def __init__(self, kind: type[torch.optim.Optimizer] = torch.optim.Adam) -> None:
        torch.manual_seed(3)
        self.net = make_net()
        self.optimizer = kind(self.net.parameters(), lr=0.01)  # type: ignore[call-arg]
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 10)
        x = torch.randn(400, 4)
        self.loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True)
        self.losses: list[Tensor] = []
        self.batches: list[tuple[Tensor, Tensor]] = []

    def run(self, steps: int, crash: str = "forward") -> None:
        for batch in self.loader:
            last = len(self.losses) == steps
            self.batches.append(batch)
            loss = loss_of(self.net, batch)
            self.losses.append(loss.detach())
            if last and crash == "forward":
                raise Crash
            self.optimizer.zero_grad()
            loss.backward()
            if last and crash == "step":
                next(self.net.parameters()).data.add_(1)  # half of an update
                for parameter in self.net.parameters():
                    parameter.grad = parameter.grad.to_sparse()  # type: ignore[union-attr]
            self.optimizer.step()
            self.scheduler.step()


def make_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))


def loss_of(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.mse_loss(net(batch[0]), batch[1])


def crashed(engine: Engine, task: Task, steps: int, crash: str = "forward") -> Exception:
    with pytest.raises(Exception) as error:
        task.run(steps, crash)
    return error.value


def saved(engine: Engine) -> list[dict[str, Any]]:
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    return engine.memory.of_kind("last_state")  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_plain_pytorch_goes_on_with_the_loss_the_run_had(
    make_engine: MakeEngine, tmp_path: Path, kind: type[torch.optim.Optimizer]
) -> None:
    engine = make_engine(settings(tmp_path))
    task = Task(kind)
    engine.end(crashed(engine, task, 30))
    (event,) = saved(engine)
    assert (
        event["source"] == "live" and event["why"] == "Crash" and event["models"] == ["Sequential"]
    )

    net = make_net()
    optimizer = kind(net.parameters(), lr=0.5)  # type: ignore[call-arg]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    state = holdfast.load_checkpoint(event["file"])
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    torch.set_rng_state(state["rng"]["torch"])
    assert state["step"] == 29
    loss = loss_of(net, task.batches[-1])
    assert torch.equal(loss, task.losses[-1])

    # And the step that was never taken, by the optimizers of both.
    for one, other in ((loss, optimizer), (loss_of_again(task, state), task.optimizer)):
        other.zero_grad()
        one.backward()
        other.step()
    for own, theirs in zip(net.parameters(), task.net.parameters(), strict=True):
        assert torch.equal(own, theirs)


def loss_of_again(task: Task, state: dict[str, Any]) -> Tensor:
    task.net.load_state_dict(state["model"])
    torch.set_rng_state(state["rng"]["torch"])
    return loss_of(task.net, task.batches[-1])


def test_inside_the_step_the_newest_snapshot_is_saved(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    engine = make_engine(settings(tmp_path))
    task = Task(torch.optim.RMSprop)
    error = crashed(engine, task, 30, "step")
    engine.end(error)
    (event,) = saved(engine)
    assert event["source"] == "snapshot" and "step 30 was cut short" in event["note"]
    state = holdfast.load_checkpoint(event["file"])
    assert 16 <= state["step"] < 30
    assert math.isfinite(loss_with(state, task))


def loss_with(state: dict[str, Any], task: Task) -> float:
    net = make_net()
    net.load_state_dict(state["model"])
    return loss_of(net, task.batches[-1]).item()


def test_a_crash_in_the_first_step_has_nothing_to_save(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    for crash in ("forward", "step"):
        engine = make_engine(settings(tmp_path))
        engine.end(crashed(engine, Task(torch.optim.RMSprop), 0, crash))
        assert saved(engine) == [] and not list(tmp_path.iterdir())


def test_a_run_that_ends_well_saves_nothing(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine(settings(tmp_path))
    Task().run(1000)
    engine.end()
    assert saved(engine) == [] and not list(tmp_path.iterdir())


def test_it_can_be_switched_off(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine(settings(tmp_path, "checkpoint.at_end=false"))
    engine.end(crashed(engine, Task(), 20))
    assert saved(engine) == [] and not list(tmp_path.iterdir())


def test_a_poisoned_state_gives_way_to_the_snapshot_before_it(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    engine = make_engine(settings(tmp_path))
    task = Task()
    error = crashed(engine, task, 20)
    with torch.no_grad():
        next(task.net.parameters()).fill_(math.nan)
    engine.end(error)
    (event,) = saved(engine)
    assert event["source"] == "snapshot" and "holds NaN" in event["note"]


class Tied(nn.Module):
    """A layer under two names, and buffers of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()
        self.again = self.net[0]  # type: ignore[index]
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.net(x)


def trained(steps: int, wrap: type[nn.Module] | None = None) -> dict[str, Tensor]:
    """Train in a function that lets model and optimizer go; what the weights were at its end."""
    torch.manual_seed(1)
    net = Tied()
    model = net if wrap is None else wrap(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return copy.deepcopy(net.state_dict())


@pytest.mark.parametrize(("steps", "wrap"), [(1, None), (21, nn.DataParallel)])
def test_a_model_that_is_gone_with_its_function_is_saved_as_it_was(
    make_engine: MakeEngine, tmp_path: Path, steps: int, wrap: type[nn.Module] | None
) -> None:
    engine = make_engine(settings(tmp_path))
    then = trained(steps, wrap)
    engine.end(Crash())
    (event,) = saved(engine)
    assert event["source"] == "snapshot" and "no longer in memory" in event["note"]
    net = Tied()
    optimizer = torch.optim.Adam(net.parameters())
    state = holdfast.load_checkpoint(event["file"])
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    assert state["step"] == steps - 1
    assert all(torch.equal(value, then[name]) for name, value in net.state_dict().items())
    assert optimizer.state[next(net.parameters())]["step"] == steps
    ((_, step, _),) = [e for e in engine.memory.events if e[0] == "exception"]  # type: ignore[attr-defined]
    assert step == steps


def masked(*, damaged_at: int = -1, steps: int = 30) -> None:
    """A function trains a model with a causal mask in a buffer, and is gone."""
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    net.register_buffer("mask", torch.triu(torch.full((5, 5), -math.inf), 1))
    net.register_buffer("lowest", torch.tensor([math.inf, math.inf]))
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(steps):
        loss = loss_of(net, (torch.ones(8, 4).cumsum(0), torch.ones(8, 1)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        net.get_buffer("lowest")[0] = loss.detach()
        if step == damaged_at:
            net.get_buffer("mask")[4, 0] = math.nan


@pytest.mark.parametrize(("damaged_at", "step"), [(-1, 29), (20, 16), (0, None)])
def test_a_mask_of_infinities_is_meant_so_and_no_other_value(
    make_engine: MakeEngine, tmp_path: Path, damaged_at: int, step: int | None
) -> None:
    engine = make_engine(settings(tmp_path))
    masked(damaged_at=damaged_at)
    engine.end(Crash())
    (event,) = saved(engine)
    if step is None:  # what was so in the first snapshot is meant so
        step = 29
    state = holdfast.load_checkpoint(event["file"])
    assert state["step"] == step and state["model"]["mask"][0, 4] == -math.inf
    assert ("mask holds NaN or infinity after step 29" in event["note"]) == (damaged_at == 20)


def test_a_model_that_outlives_its_optimizer_is_saved_with_it(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    engine = make_engine(settings(tmp_path))
    task = Task()
    crashed(engine, task, 20)
    del task.optimizer, task.scheduler
    engine.end(Crash())
    (event,) = saved(engine)
    assert (event["source"], event["optimizers"]) == ("snapshot", 1)
    assert Path(event["file"]).name.startswith("step-0000000019")


@pytest.mark.slow
def test_an_optimizer_that_goes_with_each_batch_costs_no_snapshot_each(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    engine = make_engine(settings(tmp_path, "rollback.every=1000"))
    for _ in range(40):
        trained(2)
    assert not engine.off
    assert 10 < engine.state.recovery.snapshots.count < 20


def test_parameters_with_hooks_keep_nothing_alive(make_engine: MakeEngine, tmp_path: Path) -> None:
    """A hook that knows the optimizer makes a circle, which only python may cut."""
    make_engine(settings(tmp_path))
    task = Task(torch.optim.SGD)
    optimizer = task.optimizer
    parameters = list(task.net.parameters())
    for parameter in parameters:
        parameter.register_hook(lambda grad, known=optimizer: None)
    task.run(10, crash="")
    gone = weakref.ref(task.net[0].weight)  # type: ignore[index]
    parameter = None
    del optimizer, parameters
    task.__dict__.clear()
    gc.collect()
    task = Task()
    task.run(10, crash="")
    gc.collect()
    assert gone() is None


def test_a_lost_device_leaves_the_newest_complete_snapshot(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(tree: Any) -> str:
        raise RuntimeError("CUDA error: device-side assert triggered\nmore about it")

    class Unknown:
        def query(self) -> bool:
            raise RuntimeError("CUDA error: device-side assert triggered")

        synchronize = query

    engine = make_engine(settings(tmp_path))
    error = crashed(engine, Task(), 40)
    monkeypatch.setattr(last_state, "_lost_device", lost)
    newest, older, *_ = engine.state.recovery.snapshots.taken()
    newest.copied = Unknown()  # type: ignore[assignment]
    engine.end(error)
    (event,) = saved(engine)
    assert event["source"] == "snapshot" and "device is lost (CUDA error" in event["note"]
    assert holdfast.load_checkpoint(event["file"])["step"] == older.step < newest.step


def test_a_disk_that_would_be_nearly_full_is_left_alone(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1000 << 20, 900 << 20, 100 << 20))
    engine = make_engine(settings(tmp_path))
    engine.end(crashed(engine, Task(), 20))
    (event,) = saved(engine)
    assert "10% of the disk free" in event["failed"] and not event["file"]
    assert not list(tmp_path.glob("step-*"))


def test_a_large_state_is_announced_before_it_is_written(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_state, "_LARGE", 1)
    engine = make_engine(settings(tmp_path))
    engine.end(crashed(engine, Task(), 20))
    kinds = [kind for kind, *_ in engine.memory.events]  # type: ignore[attr-defined]
    assert kinds.index("saving_last_state") < kinds.index("last_state")


def test_a_second_ctrl_c_ends_at_once(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(last_state, "save", interrupted)
    engine = make_engine(settings(tmp_path))
    try:
        engine.end(crashed(engine, Task(), 20))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)
    (event,) = saved(engine)
    assert "interrupted" in event["failed"]
    assert engine.memory.of_kind("end")  # type: ignore[attr-defined]


def test_what_cannot_be_written_is_said_and_changes_nothing(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    engine = make_engine(settings(blocked))
    engine.end(crashed(engine, Task(), 20))
    (event,) = saved(engine)
    assert "cannot make the folder" in event["failed"]


def test_a_state_that_is_on_disk_is_not_written_again(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(settings(tmp_path, "checkpoint.steps=8"))
    error = crashed(engine, Task(torch.optim.RMSprop), 30, "step")
    written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    engine.end(error)
    (event,) = saved(engine)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    if Path(event["file"]) in written:
        assert all(after[path] == at for path, at in written.items() if path in after)
    assert Path(event["file"]).exists() and event["source"] == "snapshot"


def test_parameters_without_a_module_are_saved_too(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine(settings(tmp_path))
    weights = torch.randn(4, 1, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.01)
    for _ in range(20):
        loss = (torch.randn(8, 4) @ weights).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    engine.end(Crash())
    (event,) = saved(engine)
    assert event["models"] == ["parameters"]
    state = holdfast.load_checkpoint(event["file"])
    assert torch.equal(state["model"]["0"], weights)


def test_two_models_are_saved_by_name(make_engine: MakeEngine, tmp_path: Path) -> None:
    class Maker(nn.Linear):
        pass

    class Judge(nn.Linear):
        pass

    engine = make_engine(settings(tmp_path))
    maker, judge = Maker(2, 2), Judge(2, 1)
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-3) for m in (maker, judge)]
    for _ in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad()
            judge(maker(torch.randn(4, 2))).mean().backward()
            optimizer.step()
    engine.end(Crash())
    (event,) = saved(engine)
    state = holdfast.load_checkpoint(event["file"])
    assert "model" not in state and sorted(state["models"]) == ["Judge", "Maker"]
    for name, model in (("Maker", maker), ("Judge", judge)):
        other = copy.deepcopy(model)
        nn.init.zeros_(other.weight)
        other.load_state_dict(state["models"][name])
        assert torch.equal(other.weight, model.weight)
    assert len(state["optimizers"]) == 2
