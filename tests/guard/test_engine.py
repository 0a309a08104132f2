"""How the engine sees loops of different shapes, and what happens when it breaks itself."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.guard.engine import Engine
from holdfast.guard.fail_open import attempt

from .conftest import MakeEngine


def rows_of(engine: Engine) -> np.ndarray:
    engine.close()
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    return engine.memory.rows()  # type: ignore[attr-defined]


def test_a_failure_of_ours_is_an_event_and_training_goes_on(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("a probe broke")

    for step in range(6):
        if step == 3:
            monkeypatch.setattr("holdfast.probes.host_norms.HostNorms.read", broken)
        before = net.weight.detach().clone()
        net(torch.randn(8, 4)).square().mean().backward()
        opt.step()
        opt.zero_grad()
        assert not torch.equal(before, net.weight), "the step itself must have happened"
    engine.close()
    assert engine.off == {"guard"}
    (event,) = engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    assert event["where"] == "guard"
    assert "a probe broke" in event["error"]
    assert len(engine.memory.rows()) == 3  # type: ignore[attr-defined]


def test_gradients_come_back_when_we_break_with_them_hidden(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("broke after hiding")

    (net(torch.randn(8, 4)).mean() * math.nan).backward()
    monkeypatch.setattr("holdfast.guard.optimizer_guard.OptimizerGuard.after", broken)
    opt.step()
    assert net.weight.grad is not None
    assert engine.off == {"guard"}


def test_user_exceptions_pass_through_and_leave_nothing_armed(make_engine: MakeEngine) -> None:
    """One of a step that is taken; a skipped one is not even called."""
    engine = make_engine()

    class Moody(torch.optim.SGD):
        raises = False

        def step(self, closure: Any = None) -> Any:
            if self.raises:
                raise KeyError("mine")
            return super().step(closure)

    net = nn.Linear(4, 1)
    opt = Moody(net.parameters(), lr=0.1)
    for step in range(6):
        opt.raises = step in (2, 3)
        loss = net(torch.randn(8, 4)).square().mean()
        (loss * math.nan if step == 3 else loss).backward()
        if step == 2:
            with pytest.raises(KeyError, match="mine"):
                opt.step()
        else:
            opt.step()
        opt.zero_grad()
    rows = rows_of(engine)
    assert torch.isfinite(net.weight).all()
    assert rows["skipped"].tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]


def test_two_optimizers_count_one_iteration(make_engine: MakeEngine) -> None:
    """GAN style: each has its own loss, and only the poisoned one is left out."""
    engine = make_engine()
    a, b = nn.Linear(3, 1), nn.Linear(3, 1)
    first, second = (torch.optim.Adam(m.parameters()) for m in (a, b))
    for step in range(6):
        loss = a(torch.randn(4, 3)).square().mean()
        (loss * math.nan if step == 2 else loss).backward()
        first.step()
        first.zero_grad()
        (b(torch.randn(4, 3)).square().mean() + 100).backward()
        second.step()
        second.zero_grad()
    rows = rows_of(engine)
    assert rows["step"].tolist() == [i for i in range(6) for _ in range(2)]
    assert rows["opt"].tolist() == [0, 1] * 6
    assert rows["skipped"].tolist() == [float(i == 4) for i in range(12)]
    assert (rows["loss"][rows["opt"] == 1] >= 100).all()


def test_two_optimizers_on_one_loss(make_engine: MakeEngine) -> None:
    engine = make_engine()
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    halves = [torch.optim.SGD(m.parameters(), lr=0.1) for m in net]
    for step in range(4):
        loss = net(torch.randn(4, 3)).square().mean()
        (loss * math.nan if step == 1 else loss).backward()
        for half in halves:
            half.step()
            half.zero_grad()
    rows = rows_of(engine)
    assert rows["skipped"].tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    assert np.isfinite(rows["loss"]).sum() == 6


@pytest.mark.parametrize("keyword", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_closures_are_guarded(make_engine: MakeEngine, keyword: bool, fused: bool) -> None:
    """Lightning hands a closure to every optimizer: the gradients appear inside step()."""
    engine = make_engine(fused=fused)
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.AdamW(net.parameters(), lr=0.1)
    for step in range(6):

        def closure(step: int = step) -> torch.Tensor:
            opt.zero_grad()
            loss = net(torch.randn(8, 4)).square().mean()
            loss = loss * math.nan if step in (0, 3) else loss
            loss.backward()
            return loss

        opt.step(closure=closure) if keyword else opt.step(closure)
    rows = rows_of(engine)
    assert rows["skipped"].tolist() == [1, 0, 0, 1, 0, 0]
    assert torch.isfinite(net.weight).all()
    assert rows["backwards"].tolist() == [1] * 6


def test_lbfgs_is_watched_not_skipped(make_engine: MakeEngine) -> None:
    engine = make_engine()
    net = nn.Linear(4, 1)
    opt = torch.optim.LBFGS(net.parameters(), max_iter=3)
    for step in range(4):

        def closure(step: int = step) -> torch.Tensor:
            opt.zero_grad()
            loss = net(torch.ones(8, 4)).square().mean() * (math.nan if step == 3 else 1.0)
            loss.backward()
            return loss

        opt.step(closure)
    rows = rows_of(engine)
    assert rows["skipped"].sum() == 0
    assert rows["loss_bad"].tolist() == [0, 0, 0, 1]
    assert any("LBFGS" in n["why"] for n in engine.memory.of_kind("not_covered"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("device_path", [True, False])
def test_grad_scaler_on_the_cpu(make_engine: MakeEngine, fused: bool, device_path: bool) -> None:
    engine = make_engine(device_path=device_path)
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(12):
        loss = net(torch.randn(8, 4)).square().mean()
        loss = loss * math.inf if step == 5 else loss
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
    rows = rows_of(engine)
    assert len(rows) == 12
    assert rows["scaler_skipped"][5] == 1
    assert rows["scale"][4] == 1024 and rows["scale"][7] == 512
    assert (rows["loss"][:5] < 100).all(), "the loss is recorded unscaled"
    assert (rows["grad_norm"][:5] < 100).all(), "so is the norm, whoever takes the scale away"
    assert torch.isfinite(net.weight).all()


def test_the_layer_is_named_although_clipping_ruins_all(make_engine: MakeEngine) -> None:
    engine = make_engine()
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        net(torch.randn(8, 4)).square().mean().backward()
        if step == 2:
            net[1].weight.grad[0, 0] = math.inf  # type: ignore[union-attr,index]
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
    rows = rows_of(engine)
    (described,) = engine.memory.of_kind("optimizer")  # type: ignore[attr-defined]
    assert rows["grad_bad"].tolist() == [0, 0, 1, 0]
    assert described["layers"][int(rows["grad_layer"][2])] == "1.weight"
    assert rows["skipped"].tolist() == [0, 0, 1, 0]


def test_large_but_finite_gradients_are_no_fault(make_engine: MakeEngine) -> None:
    """1e25 squared overflows fp32; the gradient is finite all the same."""
    for device_path in (False, True):
        engine = make_engine(device_path=device_path)
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), lr=1e-30)
        for _ in range(3):
            (net(torch.ones(2, 4)).sum() * 1e25).backward()
            opt.step()
            opt.zero_grad()
        rows = rows_of(engine)
        assert rows["skipped"].sum() == 0
        assert (rows["grad_norm"] > 1e25).all() and np.isfinite(rows["grad_norm"]).all()


def test_parameters_added_later_are_learned(make_engine: MakeEngine) -> None:
    for device_path in (False, True):
        engine = make_engine(device_path=device_path)
        net = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 1)})
        opt = torch.optim.SGD(net["a"].parameters(), lr=0.1, momentum=0.9)
        for step in range(6):
            if step == 3:
                opt.add_param_group({"params": list(net["b"].parameters())})
            loss = net["b"](net["a"](torch.randn(4, 3))).square().mean()
            (loss * math.nan if step == 3 else loss).backward()
            opt.step()
            net.zero_grad()
        rows = rows_of(engine)
        assert rows["skipped"].tolist() == [0, 0, 0, 1, 0, 0]
        assert engine.memory.of_kind("optimizer")[-1]["layers"][-1] == "b.bias"  # type: ignore[attr-defined]


def test_manual_updates_are_reported_to_be_uncovered(make_engine: MakeEngine) -> None:
    engine = make_engine()
    w = torch.randn(4, requires_grad=True)
    for _ in range(100):
        loss = (w * torch.randn(4)).sum().square()
        loss.backward()
        with torch.no_grad():
            w -= 1e-3 * w.grad  # type: ignore[operator]
            w.grad = None
    rows = rows_of(engine)
    assert len(rows) == 100
    assert "by hand" in engine.memory.of_kind("not_covered")[0]["why"]  # type: ignore[attr-defined]


def test_nothing_is_kept_alive(make_engine: MakeEngine) -> None:
    """Holdfast must not become the leak it looks for."""
    import gc
    import weakref

    engine = make_engine()
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    opt = torch.optim.AdamW(net.parameters())
    for _ in range(20):
        net(torch.randn(8, 4)).square().mean().backward()
        opt.step()
        opt.zero_grad()
    gone = weakref.ref(net), weakref.ref(opt), weakref.ref(net[0].weight)
    del net, opt
    gc.collect()
    assert [r() for r in gone] == [None, None, None]
    assert not engine.off


def test_a_guard_over_budget_backs_off_and_says_so(make_engine: MakeEngine) -> None:
    """Only what is optional: the skip goes on."""
    engine = make_engine(budget=1e-6)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(400):
        loss = net(torch.randn(8, 4)).square().mean()
        (loss * math.nan if step == 390 else loss).backward()
        opt.step()
        opt.zero_grad()
    rows = rows_of(engine)
    reported = engine.memory.of_kind("backed_off")  # type: ignore[attr-defined]
    assert [each["part"] for each in reported] == ["measurements", "look-outs", "floor"]
    assert all(each["cost"] > 1e-6 and each["per_step"] > 0 for each in reported)
    assert rows["skipped"].sum() == 1
    measured = np.flatnonzero(np.isfinite(rows["rss"])).tolist()
    assert measured[:8] == [0, 16, 32, 48, 64, 80, 96, 112] and measured[-1] - measured[-2] > 16


def test_a_guard_within_budget_measures_on(make_engine: MakeEngine) -> None:
    engine = make_engine(budget=1.0)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(300):
        net(torch.randn(8, 4)).square().mean().backward()
        opt.step()
        opt.zero_grad()
    rows = rows_of(engine)
    assert engine.memory.of_kind("backed_off") == []  # type: ignore[attr-defined]
    assert np.isfinite(rows["rss"]).sum() == math.ceil(300 / 16)


def test_a_batch_on_a_device_is_never_read() -> None:
    """The meta device has no values at all: reading one raises, as a sync would under "error"."""
    from holdfast.probes.batches import nonfinite

    bad = torch.tensor([[1.0], [math.nan]])
    assert nonfinite({"x": torch.empty(2, 3, device="meta"), "y": bad}) == [("batch['y']", [1])]


def test_time_spent_in_a_part_that_calls_another_counts_once(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.phases.take_host()
    began = time.perf_counter()
    attempt(engine, "guard", attempt, engine, "investigation", time.sleep, 0.05)
    spent = time.perf_counter() - began
    assert 0.05 <= engine.phases.take_host()["guard"] <= spent


def test_a_comparison_that_fails_leaves_the_step_alone(make_engine: MakeEngine) -> None:
    engine = make_engine(fast=True)  # there is nothing to compare without

    def turn(steps: object) -> int:
        raise ValueError("no")

    engine.torch_time_saved.turn = turn  # type: ignore[method-assign]
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    for _ in range(40):
        weight.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert engine.off == {"comparison"} and float(weight.detach().sum()) < 0.5
