"""A run that spikes, is damaged or meets other data: kept, brought back, or let go on."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.checkpoint.file import load as load_checkpoint
from holdfast.checkpoint.tree import flatten
from holdfast.config import Settings, load
from holdfast.errors import Stopped
from holdfast.guard.engine import Engine
from holdfast.recovery import live_state

from ..guard.conftest import MakeEngine

Hook = Callable[[int, nn.Module, torch.optim.Optimizer], None]


def settings(*overrides: str) -> Settings:
    """Snapshots every eight steps, whatever they cost; the loops here have no loader.

    There holdfast acts on finite losses only where it is asked to.
    """
    asked = ["policy.OPT001=rollback", "policy.OPT002=[skip, clip]"]
    asked += ["policy.OPT003=[rollback, lower_lr]"]
    return load(None, ["rollback.every=8", "rollback.cost=1", *asked, *overrides])


class Task:
    """A regression that a small net learns well; a loop without a loader."""

    def __init__(self, optimizer: str = "sgd", *, dropout: float = 0.0) -> None:
        torch.manual_seed(3)
        self.net = nn.Sequential(
            nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(dropout), nn.Tanh(), nn.Linear(16, 1)
        )
        make = {
            "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
            "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
        }
        self.optimizer = make[optimizer](self.net.parameters())
        self.rng = torch.Generator().manual_seed(5)
        self.level = 1.0
        self.losses: list[float] = []

    def batch(self) -> tuple[Tensor, Tensor]:
        x = torch.randn(32, 4, generator=self.rng)
        return x, self.level * torch.sin(x.sum(1, keepdim=True))

    def run(
        self,
        steps: int,
        *,
        poison: range = range(0),
        omitted: range = range(0),
        before: Hook | None = None,
        after: Hook | None = None,
    ) -> Task:
        for step in range(steps):
            x, y = self.batch()
            if step in omitted:
                continue
            if step in poison:
                y = y * 1000
            if before is not None:
                before(step, self.net, self.optimizer)
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.net(x), y)
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
            if after is not None:
                after(step, self.net, self.optimizer)
        return self

    @property
    def final(self) -> float:
        return sum(self.losses[-20:]) / 20


def everything(task: Task) -> dict[str, Any]:
    return {"net": task.net.state_dict(), "opt": task.optimizer.state_dict()["state"]}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def reported(engine: Engine, kind: str) -> list[dict[str, Any]]:
    engine.close()
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    return engine.memory.of_kind(kind)  # type: ignore[attr-defined]


def damage(at: int, factor: float = 30.0) -> Hook:
    def hook(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if step == at:
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.mul_(factor)

    return hook


@pytest.mark.parametrize("optimizer", [pytest.param("sgd", marks=pytest.mark.slow), "adamw"])
@pytest.mark.parametrize("device_path", [False, True])
def test_a_poisoned_window_leaves_no_trace(
    make_engine: MakeEngine, optimizer: str, device_path: bool
) -> None:
    make_engine(settings("guard.fused=false"), device_path=device_path)
    clean = Task(optimizer).run(120, omitted=range(60, 66))
    engine = make_engine(settings("guard.fused=false"), device_path=device_path)
    saved = Task(optimizer).run(120, poison=range(60, 66))
    # The norms that are clipped for a while afterwards are usual ones: nothing is clipped.
    assert same(everything(saved), everything(clean))
    assert reported(engine, "rollback") == []
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert rows["step"][rows["skipped"] > 0].tolist() == list(range(60, 66))


def test_a_window_in_the_first_steps_after_the_warm_up(make_engine: MakeEngine) -> None:
    engine = make_engine(settings())
    Task().run(40, poison=range(20, 21))
    engine.close()
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert rows["step"][rows["skipped"] > 0].tolist() == [20]


@pytest.mark.parametrize("device_path", [False, True])
def test_damaged_weights_are_taken_back(make_engine: MakeEngine, device_path: bool) -> None:
    clean = Task().run(240)
    engine = make_engine(settings(), device_path=device_path)
    saved = Task().run(240, before=damage(100))
    (event,) = reported(engine, "rollback")
    assert event["code"] == "OPT001"
    assert 80 <= event["to"] < 100
    assert event["first"] == 100
    assert saved.final < 1.3 * clean.final
    assert reported(engine, "trial") == []


def test_what_is_put_back_is_the_snapshot_bit_for_bit(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_state, "_SETTLED", -1.0)
    engine = make_engine(settings("rollback.schedule=true"))
    task = Task("adamw", dropout=0.2)
    average = torch.optim.swa_utils.AveragedModel(task.net)
    schedule = torch.optim.lr_scheduler.ExponentialLR(task.optimizer, 0.999)
    kept: list[Any] = []

    def after(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        trial = engine.state.recovery._trial
        if trial is not None:
            now = engine.state.recovery.live.training_state().state()
            kept.append(copy.deepcopy((now, trial.target.tree)))
        average.update_parameters(net)
        schedule.step()

    task.run(100, before=damage(60), after=after)
    ((now, then),) = kept
    for part in ("models", "optimizers", "ema", "schedulers"):
        assert same(now[part], then[part]), part
    assert len(now["ema"]) == 1
    assert len(reported(engine, "rollback")) == 1


def test_a_schedule_goes_on_with_the_loop(make_engine: MakeEngine) -> None:
    engine = make_engine(settings())
    task = Task()
    schedule = torch.optim.lr_scheduler.ExponentialLR(task.optimizer, 0.99)

    def after(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        schedule.step()

    task.run(200, before=damage(101), after=after)
    assert len(reported(engine, "rollback")) == 1
    assert schedule.last_epoch == 200
    assert task.optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * 0.99**200)


@pytest.mark.parametrize("loader", [False, True])
def test_dice_are_put_back_only_where_data_comes_from_a_loader(
    make_engine: MakeEngine, loader: bool
) -> None:
    """A loop that draws its data itself would draw the same again."""
    engine = make_engine(settings())
    task = Task(dropout=0.1)
    drawn: list[float] = []
    data = torch.utils.data.TensorDataset(torch.randn(3200, 4), torch.randn(3200, 1) * 0.1)
    batches = iter(torch.utils.data.DataLoader(data, 32))

    def batch() -> Any:
        if loader:
            return next(batches)
        drawn.append(float(torch.rand(())))
        return Task.batch(task)

    task.batch = batch  # type: ignore[method-assign]
    seen: list[bool] = []

    def before(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        damage(60)(step, net, optimizer)
        trial = engine.state.recovery._trial
        if trial is not None:
            then = trial.target.tree["dice"]["torch"]
            seen.append(torch.equal(torch.get_rng_state(), then))

    task.run(95, before=before)
    assert len(reported(engine, "rollback")) == 1
    assert seen == [loader]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.slow
def test_a_curriculum_is_not_rolled_back(make_engine: MakeEngine) -> None:
    plain = Task()

    def harder(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        plain.level = 40.0 if step >= 100 else 1.0

    plain.run(400, before=harder)
    engine = make_engine(settings())
    task = Task()
    states: list[Any] = []

    def before(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if step == 100:
            task.level = 40.0
        if engine.state.recovery._trial is not None:
            states.append(copy.deepcopy(engine.state.recovery._trial.kept.tree["models"]))

    def after(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if states and len(states) == 1:
            states.append(
                copy.deepcopy(engine.state.recovery.live.training_state().state()["models"])
            )

    task.run(400, before=before, after=after)
    assert reported(engine, "rollback") == []
    (trial,) = reported(engine, "trial")
    assert trial["verdict"] == "data"
    assert same(states[0], states[1])
    (level,) = reported(engine, "level")
    assert level["after"] > 10 * level["before"]
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert rows["skipped"].sum() <= 14
    assert task.final < 1.3 * plain.final


def test_a_mask_of_infinities_keeps_no_run_from_going_back(make_engine: MakeEngine) -> None:
    engine = make_engine(settings())
    task = Task()
    mask = torch.triu(torch.full((5, 5), -math.inf), 1)
    task.net.register_buffer("mask", mask.clone())
    task.run(160, before=damage(80))
    (back,) = reported(engine, "rollback")
    assert 72 <= back["to"] < 80 and torch.equal(task.net.get_buffer("mask"), mask)
    assert reported(engine, "not_covered") == []


def test_weights_that_are_not_finite_are_taken_back(make_engine: MakeEngine) -> None:
    engine = make_engine(settings())

    def before(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if step == 70:
            with torch.no_grad():
                next(net.parameters())[0] = math.nan

    task = Task().run(150, before=before)
    (event,) = reported(engine, "rollback")
    assert (event["code"], event["why"]) == ("NUM003", "weights")
    assert math.isfinite(task.final)


def test_damage_that_returns_lowers_the_learning_rate(make_engine: MakeEngine) -> None:
    engine = make_engine(settings("rollback.lr=0.25"))

    def before(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if step in (100, 160):
            damage(step)(step, net, optimizer)

    task = Task().run(260, before=before)
    events = reported(engine, "rollback")
    assert [e["code"] for e in events] == ["OPT001", "OPT003"]
    assert [e["lr_factor"] for e in events] == [1.0, 0.25]
    assert task.optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * 0.25)


def test_moments_are_forgotten_on_request(make_engine: MakeEngine) -> None:
    engine = make_engine(settings("rollback.reset_moments=true"))
    task = Task("adamw").run(130, before=damage(100))
    (event,) = reported(engine, "rollback")
    assert event["moments_reset"]
    counters = {int(s["step"]) for s in task.optimizer.state.values()}
    assert max(counters) < 30


@pytest.mark.parametrize("do", ["skip,lower_lr", "lower_lr"])
def test_the_rate_falls_once_after_norms_far_from_usual(make_engine: MakeEngine, do: str) -> None:
    engine = make_engine(settings(f"policy.OPT002.do={do}", "policy.OPT001=observe"))
    task = Task().run(60)
    assert reported(engine, "lowered_lr") == []
    task.run(4, poison=range(1, 4))  # three in a row
    (event,) = reported(engine, "lowered_lr")
    assert event["factor"] == 0.5 and event["norm"] > 10 * event["usual"]
    assert task.optimizer.param_groups[0]["lr"] == pytest.approx(0.025)


def test_the_rate_stays_where_nobody_asked(make_engine: MakeEngine) -> None:
    engine = make_engine(settings())
    task = Task().run(60).run(4, poison=range(1, 4))
    assert reported(engine, "lowered_lr") == []
    assert task.optimizer.param_groups[0]["lr"] == 0.05


def test_a_spent_budget_ends_the_run_with_the_last_good_state(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    engine = make_engine(
        settings("policy.OPT002.do=skip", "policy.OPT002.budget=3", f"checkpoint.dir={tmp_path}")
    )
    with pytest.raises(Stopped, match="budget of OPT002 is spent"):
        Task().run(200, poison=range(100, 200))
    (event,) = reported(engine, "stop")
    assert event["code"] == "OPT002"
    assert event["checkpoint"].startswith(str(tmp_path))
    state, _ = load_checkpoint(event["checkpoint"])
    _, tensors = flatten(state["models"])
    assert len(tensors) == len(Task().net.state_dict())
    assert all(torch.isfinite(t).all() for t in tensors)


@pytest.mark.parametrize("rule", ["OPT001=observe", "OPT001=stop"])
def test_the_policy_decides(make_engine: MakeEngine, rule: str, tmp_path: Path) -> None:
    code, _, action = rule.partition("=")
    engine = make_engine(settings(f"policy.{code}={action}", f"checkpoint.dir={tmp_path}"))
    if action == "stop":
        with pytest.raises(Stopped):
            Task().run(240, before=damage(100))
    else:
        Task().run(240, before=damage(100))
    assert reported(engine, "rollback") == []
    assert len(reported(engine, "stop")) == (action == "stop")


def test_watching_only_touches_nothing(make_engine: MakeEngine) -> None:
    plain = Task().run(160, poison=range(60, 63), before=damage(100))
    engine = make_engine(settings("spike.detect=true"), skip=False)
    watched = Task().run(160, poison=range(60, 63), before=damage(100))
    assert same(everything(plain), everything(watched))
    assert reported(engine, "rollback") == []
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert rows["outlier"][60] == 3


def test_memory_that_is_short_costs_the_rollback_and_nothing_else(make_engine: MakeEngine) -> None:
    engine = make_engine(settings("rollback.memory=0"))
    Task().run(60)
    assert reported(engine, "rollback") == []
    assert [e["what"] for e in reported(engine, "not_covered")] == ["rolling back"]


@pytest.mark.slow
def test_snapshots_cost_no_more_than_they_may(make_engine: MakeEngine) -> None:
    engine = make_engine(load(None, ["rollback.every=1", "rollback.cost=0.001"]))
    Task().run(300)
    (event,) = reported(engine, "snapshots")
    assert event["count"] < 60
    assert event["every"] > 10


def test_a_second_optimizer_makes_older_snapshots_useless(make_engine: MakeEngine) -> None:
    engine = make_engine(settings())
    first = Task().run(40)
    second = Task("adamw").run(60, before=damage(50))
    events = reported(engine, "rollback")
    assert all(e["to"] >= 40 for e in events)
    assert first.net is not second.net


@pytest.mark.slow
@pytest.mark.parametrize("how", ["loss", "gradient"])
@pytest.mark.parametrize("device_path", [False, True])
def test_a_storm_of_nan_is_no_damage(make_engine: MakeEngine, how: str, device_path: bool) -> None:
    """Finite weights, and old ones fare no better: nothing moves, however long it lasts."""
    make_engine(settings("guard.explain=false"), device_path=device_path)
    storm = range(60, 100)
    clean = Task().run(160, omitted=storm)
    engine = make_engine(settings("guard.explain=false"), device_path=device_path)
    task = Task()
    for step in range(160):
        x, y = task.batch()
        task.optimizer.zero_grad()
        loss = nn.functional.mse_loss(task.net(x), y)
        if step in storm:
            root = torch.sqrt(next(task.net.parameters()).sum() * 0.0)  # infinite derivative
            loss = loss * math.nan if how == "loss" else loss + root
        loss.backward()
        task.optimizer.step()
    assert same(everything(task), everything(clean))
    assert reported(engine, "rollback") == [] and reported(engine, "level") == []
    (trial,) = reported(engine, "trial")
    cause = "NUM001" if how == "loss" else "NUM002"
    assert (trial["verdict"], trial["cause"]) == ("nonfinite", cause)


def test_the_trial_within_a_storm_does_not_give_the_budget_back(make_engine: MakeEngine) -> None:
    engine = make_engine(settings("guard.explain=false", "policy.NUM001.budget=30"))
    task, made = Task(), 0
    with pytest.raises(Stopped, match="skip 30 times in a row"):
        for step in range(200):
            x, y = task.batch()
            task.optimizer.zero_grad()
            loss = nn.functional.mse_loss(task.net(x), y) * (math.nan if step >= 60 else 1.0)
            loss.backward()
            task.optimizer.step()
            made = step + 1
    assert [e["verdict"] for e in reported(engine, "trial")] == ["nonfinite"]
    assert reported(engine, "level") == []
    assert made - 60 <= 32


@pytest.mark.slow
@pytest.mark.parametrize("device_path", [False, True])
def test_a_trial_in_vain_is_made_once_while_the_trouble_lasts(
    make_engine: MakeEngine, device_path: bool
) -> None:
    """Storms that return soon have their cause already; after a long calm it is another one."""
    engine = make_engine(settings("guard.explain=false"), device_path=device_path)
    task = Task()
    for step in range(520):
        x, y = task.batch()
        task.optimizer.zero_grad()
        loss = nn.functional.mse_loss(task.net(x), y)
        if step >= 60 and step % 50 < 20 and not 160 <= step < 440:
            loss = loss * math.nan
        loss.backward()
        task.optimizer.step()
    assert reported(engine, "rollback") == []
    trials = [at for kind, at, _ in engine.memory.events if kind == "trial"]  # type: ignore[attr-defined]
    assert len(trials) == 2 and trials[0] < 140 and trials[1] > 440


@pytest.mark.parametrize("device_path", [False, True])
def test_older_weights_are_not_tried_on_bad_data(
    make_engine: MakeEngine, device_path: bool
) -> None:
    engine = make_engine(settings("guard.explain=false"), device_path=device_path)
    task = Task()
    data = [task.batch() for _ in range(120)]
    for x, _ in data[60:90]:
        x[0, 2] = math.nan
    for x, y in torch.utils.data.DataLoader(data, batch_size=None):  # type: ignore[arg-type]
        task.optimizer.zero_grad()
        nn.functional.mse_loss(task.net(x), y).backward()
        task.optimizer.step()
    assert reported(engine, "rollback") == [] and reported(engine, "trial") == []
    assert engine.memory.rows()["skipped"].sum() == 30  # type: ignore[attr-defined]


def pair(steps: int, *, damaged: int = -1, level: Callable[[int], float] = lambda _: 1.0) -> None:
    """Two networks that share a graph: the second steps on what was computed before the first."""
    torch.manual_seed(3)
    maker = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    judge = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    first = torch.optim.SGD(judge.parameters(), lr=0.05)
    second = torch.optim.SGD(maker.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(5)
    hurt = damage(damaged)
    for step in range(steps):
        hurt(step, judge, first)
        x = torch.randn(32, 4, generator=generator)
        made = maker(x)
        first.zero_grad()
        wanted = level(step) * torch.sin(x.sum(1, keepdim=True))
        nn.functional.mse_loss(judge(made.detach()), wanted).backward()
        first.step()
        second.zero_grad()
        judge(made).square().mean().backward()
        second.step()


def test_going_back_waits_for_the_second_of_two_optimizers(make_engine: MakeEngine) -> None:
    """Its graph is from before the first one's step, and torch refuses other weights for it."""
    engine = make_engine(settings())
    pair(120, damaged=60)
    assert len(reported(engine, "rollback")) == 1


def test_a_trial_that_is_undone_between_two_optimizers(make_engine: MakeEngine) -> None:
    """Old weights do not help. The second would step by gradients of weights that are gone."""
    engine = make_engine(settings())
    pair(120, level=lambda step: 1.0 if step < 60 else 1000.0)
    assert [trial["verdict"] for trial in reported(engine, "trial") if trial["opt"] == 0] == [
        "data"
    ]
    events = engine.memory.events  # type: ignore[attr-defined]
    at = next(step for kind, step, data in events if kind == "trial" and data["opt"] == 0)
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    # Told with the step that follows it.
    assert rows["skipped"][rows["step"] == at - 1].tolist() == [1.0, 1.0]


def test_weights_that_a_closure_has_ruined(make_engine: MakeEngine) -> None:
    """LBFGS takes its steps inside of one: nothing can be skipped, but it can go back."""
    engine = make_engine(settings())
    torch.manual_seed(3)
    x = torch.linspace(0, 6, 64)[:, None]
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4)
    for step in range(30):
        scale = torch.tensor(0.0 if step == 20 else 1.0)

        def closure(scale: Tensor = scale) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), torch.sin(x)) / scale * scale
            loss.backward()
            return loss

        optimizer.step(closure)
    (back,) = reported(engine, "rollback")
    assert (back["code"], back["to"] < 20) == ("NUM003", True)
    assert all(parameter.isfinite().all() for parameter in net.parameters())
