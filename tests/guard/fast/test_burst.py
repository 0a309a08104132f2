"""Steps of a burst are steps of the fast path: the same rows, weights and losses, later."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from holdfast.config import Settings
from holdfast.diagnosis.watchers import Watchers
from holdfast.guard.engine import Engine
from holdfast.guard.fast import burst, burst_hooks, bursts
from holdfast.guard.fast.burst import StepBurst
from holdfast.guard.fast.bursts import StepBursts
from holdfast.guard.hooks import optimizer as optimizer_hooks
from holdfast.probes import norm_kernel
from holdfast.probes.cost_budget import CostBudget
from holdfast.probes.step_record import StepRecord
from holdfast.records.columns import TIMES

from .. import host_kernels
from ..conftest import MakeEngine, MemoryRecorder, own_steps
from ..trainers import Accelerated, Closing, Trainer

# Times, and what is looked at in some steps: other ones on another path.
_OTHER = {*TIMES, "time", "guard", "guard_device", "guard_hidden", "rss", "losses"}
STEPS = 140

Ended = tuple[MemoryRecorder, dict[str, Tensor], list[float]]


def batch(step: int) -> Tensor:
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
    if step in (60, 61, 97):
        x[3] = torch.nan
    return x * (300.0 if step == 130 else 1.0)


class Loop:
    """A training of a user's; what he does besides is in ``besides``, after so many steps."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=True)
        self.read: list[float] = []

    def loss(self, step: int) -> Tensor:
        return self.model(batch(step)).square().mean()

    def run(self, besides: Callable[[Loop, int], None]) -> None:
        for step in range(STEPS):
            loss = self.loss(step)
            (loss / 1).backward() if step % 31 == 3 else loss.backward()
            self.read.append(loss.item())
            besides(self, step)
            self.optimizer.step()
            self.optimizer.zero_grad()


def nothing(loop: Loop, step: int) -> None: ...


def accumulates(loop: Loop, step: int) -> None:
    if step % 13 == 12:
        loop.loss(1000 + step).backward()


def clips(loop: Loop, step: int) -> None:
    if step % 17 == 5:
        nn.utils.clip_grad_norm_(loop.model.parameters(), 0.01)


def drops_a_gradient(loop: Loop, step: int) -> None:
    if step % 11 == 10:
        next(loop.model.parameters()).grad = None


def steps_twice(loop: Loop, step: int) -> None:
    if step % 19 == 7:
        loop.optimizer.step()


def reloads(loop: Loop, step: int) -> None:
    if step == 77:
        loop.optimizer.load_state_dict(loop.optimizer.state_dict())


def schedules(loop: Loop, step: int) -> None:
    loop.optimizer.param_groups[0]["lr"] = 1e-2 / (1 + step)


def fails_inside(loop: Loop, step: int) -> None:
    """An error inside ``step``, which the script catches."""
    if step == 70:
        state = next(iter(loop.optimizer.state.values()))
        kept = state.pop("exp_avg")
        with pytest.raises(KeyError):
            loop.optimizer.step()
        state["exp_avg"] = kept


def another_optimizer(loop: Loop, step: int) -> None:
    if step == 110:
        torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


class Scaled(Loop):
    """The same with a GradScaler, which grows now and then and is too high in two steps.

    From some step on there are two batches to a step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=9)

    def run(self, besides: Callable[[Loop, int], None]) -> None:
        for step in range(STEPS):
            if step > 110:
                before = self.loss(2000 + step)
                self.scaler.scale(before).backward()
            loss = self.loss(step)
            self.scaler.scale(loss / 1 if step % 31 == 3 else loss).backward()
            self.read.append(loss.item())
            besides(self, step)
            self.scaler.step(self.optimizer)
            # Far too high in two steps: no gradient is finite with it, while the loss is.
            reported = {47: torch.inf, 48: 512.0, 105: torch.inf, 106: 512.0}
            self.scaler.update(reported.get(step))
            self.optimizer.zero_grad()


class Frozen(Loop):
    """The same with frozen weights, which thaw, and a bad gradient behind them."""

    def __init__(self) -> None:
        super().__init__()
        next(self.model.parameters()).requires_grad_(False)

    def run(self, besides: Callable[[Loop, int], None]) -> None:
        def and_thaws(loop: Loop, step: int) -> None:
            besides(loop, step)
            first, *_, bias = loop.model.parameters()
            if step in (85, 118):
                bias.grad.fill_(torch.inf)  # type: ignore[union-attr]
            first.requires_grad_(step >= 100)

        super().run(and_thaws)


class Accumulated(Loop):
    """The same with three batches to a step, from a loader."""

    def run(self, besides: Callable[[Loop, int], None]) -> None:
        data = [batch(2000 + n if n % 3 else n // 3) for n in range(3 * STEPS)]
        for n, x in enumerate(DataLoader(data, batch_size=None)):  # type: ignore[arg-type]
            loss = self.model(x).square().mean() / 3
            loss.backward()
            self.read.append(loss.item())
            if n % 3 == 2:
                besides(self, n // 3)
                self.optimizer.step()
                self.optimizer.zero_grad()


class Normed(nn.Module):
    """With batch norm, a counter and a table."""

    seen: Tensor
    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(12, 1)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("table", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(len(x))
        return self.last(torch.cat([self.norm(self.first(x)).tanh(), x], 1))


class NormedLoop(Loop):
    """The same with buffers that every forward pass changes."""

    model: Normed  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.model = Normed()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=True)


class NormedLoaded(NormedLoop):
    """From a loader: a spike is skipped."""

    def run(self, besides: Callable[[Loop, int], None]) -> None:
        for step, x in enumerate(DataLoader(Batches(), batch_size=None)):
            loss = self.model(x).square().mean()
            loss.backward()
            self.read.append(loss.item())
            besides(self, step)
            self.optimizer.step()
            self.optimizer.zero_grad()


class NormedScaled(NormedLoop, Scaled): ...


def changes_buffers(loop: Loop, step: int) -> None:
    """What may happen to them between two steps, and bad gradients soon after."""
    assert isinstance(loop, NormedLoop)
    norm = loop.model.norm
    if step == 35:
        norm.running_mean = torch.zeros(8)
    if step == 42 and norm.running_var is not None:  # in other memory
        norm.running_var.data = norm.running_var.clone()
    if step in (52, 57):
        loop.model.train(step == 57)
    if step in (72, 93) and norm.running_var is not None:  # of a step that is good
        norm.running_var[3] = torch.inf
    if step in (37, 44, 85, 108):
        next(loop.model.parameters()).grad[0] = torch.nan  # type: ignore[index]
    if step > 104:  # begins to move
        loop.model.table.add_(1.0)
    if step == 118:
        norm.eval()


def changes_and_clips(loop: Loop, step: int) -> None:
    changes_buffers(loop, step)
    unscales_and_clips(loop, step)
    if step in (21, 28, 94):  # a forward pass in between
        with torch.no_grad():
            loop.loss(3000)


def unscales(loop: Loop, step: int) -> None:
    assert isinstance(loop, Scaled)
    loop.scaler.unscale_(loop.optimizer)


def unscales_later(loop: Loop, step: int) -> None:
    """At first the optimizer is told the scale, then not."""
    if step > 70:
        unscales(loop, step)


def unscales_and_clips(loop: Loop, step: int) -> None:
    unscales(loop, step)
    always_clips(loop, step)


def unscales_now_and_then(loop: Loop, step: int) -> None:
    if step % 13 == 5:
        unscales(loop, step)


def scaler_skips(loop: Loop, step: int) -> None:
    """The optimizer is none that is told: the scaler itself does not call its step."""
    vars(loop.optimizer)["_step_supports_amp_scaling"] = step not in (61, 81, 97)


def another_scaler(loop: Loop, step: int) -> None:
    assert isinstance(loop, Scaled)
    if step == 75:
        state, loop.scaler = loop.scaler.state_dict(), torch.amp.GradScaler("cpu")
        loop.scaler.load_state_dict(state)
        loop.optimizer.zero_grad()
        loop.scaler.scale(loop.loss(step)).backward()


def without_the_scaler(loop: Loop, step: int) -> None:
    if step % 17 == 11:
        loop.optimizer.step()


def with_a_closure(loop: Loop, step: int) -> None:
    if step % 19 == 7:
        loop.optimizer.step(lambda: loop.loss(step))


def much_scaled(loop: Loop, step: int) -> None:
    for besides in (drops_a_gradient, reloads, schedules, another_optimizer, with_a_closure):
        besides(loop, step)
    for besides in (unscales_now_and_then, scaler_skips, another_scaler, without_the_scaler):
        besides(loop, step)


def trained(engine: Engine, loop: Loop, besides: Callable[[Loop, int], None]) -> Ended:
    loop.run(besides)
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    assert not {"found_inf", "grad_scale"} & loop.optimizer.__dict__.keys()
    engine.close()
    return engine.memory, loop.model.state_dict(), loop.read  # type: ignore[attr-defined]


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each step that a burst was asked about was its own."""
    host_kernels.install(monkeypatch)
    return own_steps(monkeypatch)


def much(loop: Loop, step: int) -> None:
    for besides in (accumulates, drops_a_gradient, steps_twice, reloads, schedules, fails_inside):
        besides(loop, step)
    for besides in (clips, another_optimizer, with_a_closure):
        besides(loop, step)


def always_clips(loop: Loop, step: int) -> None:
    nn.utils.clip_grad_norm_(loop.model.parameters(), 0.01)
    if step % 23 == 11:  # touched since: what was measured is of no use
        next(loop.model.parameters()).grad.mul_(0.5)  # type: ignore[union-attr]
    if step % 29 == 13:  # clipped once more
        nn.utils.clip_grad_norm_(loop.model.parameters(), 0.005)


def always_clips_all(loop: Loop, step: int) -> None:
    nn.utils.clip_grad_norm_(loop.model.parameters(), 0.01)


def accumulates_and_clips(loop: Loop, step: int) -> None:
    for besides in (accumulates, always_clips, schedules):
        besides(loop, step)


@pytest.mark.parametrize(
    ("kind", "besides", "own"),
    [
        (Loop, nothing, 60),
        (Loop, much, 20),
        (Frozen, nothing, 60),
        (Frozen, always_clips_all, 40),
        (Scaled, unscales_later, 60),
        pytest.param(Scaled, unscales_and_clips, 20, marks=pytest.mark.slow),
        (Scaled, much_scaled, 20),
        (Accumulated, accumulates_and_clips, 20),
        (NormedLoaded, changes_buffers, 40),
        (NormedScaled, changes_and_clips, 20),
    ],
)
def test_a_burst_changes_nothing_but_when_rows_are_written(
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    stepped: list[bool],
    kind: type[Loop],
    besides: Callable[[Loop, int], None],
    own: int,
) -> None:
    short = trained(make_engine(device_path=True, budget=1.0, explain=False), kind(), besides)
    assert sum(stepped) > own
    monkeypatch.setattr(StepBursts, "begin", lambda *_: None)
    long = trained(make_engine(device_path=True, budget=1.0, explain=False), kind(), besides)
    assert all(map(torch.equal, short[1].values(), long[1].values()))
    assert short[2] == long[2] and np.isfinite(short[2]).all()
    same_rows(short[0], long[0])
    skipped = short[0].rows()["scaler_skipped"]
    assert (skipped == 1).sum() == {Scaled: 5, NormedScaled: 9}.get(kind, 0)


def bad_gradient(loop: Loop, step: int) -> None:
    if step == 85:
        next(loop.model.parameters()).grad[0] = torch.nan  # type: ignore[index]


def test_a_step_skipped_in_a_burst_leaves_no_trace_in_buffers(
    make_engine: MakeEngine, stepped: list[bool]
) -> None:
    skipped, plain = {60, 61, 85, 97, 130}, NormedLoop()
    for step in set(range(STEPS)) - skipped:
        plain.loss(step).backward()
        plain.optimizer.step()
        plain.optimizer.zero_grad()
    engine = make_engine(device_path=True, budget=1.0, explain=False)
    memory, state, _ = trained(engine, NormedLoaded(), bad_gradient)
    assert sum(stepped) > 60
    assert set(np.flatnonzero(memory.rows()["skipped"]).tolist()) == skipped
    assert all(map(torch.equal, state.values(), plain.model.state_dict().values()))


def same_rows(one: MemoryRecorder, other: MemoryRecorder) -> None:
    assert one.batches == other.batches
    rows, others = one.rows(), other.rows()
    assert rows["loss_bad"].sum() == 3
    for column in rows.dtype.names or ():
        # The weights are looked at from the step on in which a bad one is known.
        if column not in _OTHER | {"param_bad", "param_layer"}:
            np.testing.assert_array_equal(rows[column], others[column], err_msg=column)


class Batches(Dataset[Tensor]):
    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, step: int) -> Tensor:
        if step == STEPS:
            raise IndexError
        return batch(step)


def by_trainer(engine: Engine, kind: Trainer, besides: Callable[[nn.Module, int], None]) -> Ended:
    model = Loop().model
    model.register_buffer("table", torch.ones(3))
    trainer = kind(model)
    loader = DataLoader(Batches(), batch_size=None)
    steps = trainer.steps(loader, lambda step: besides(trainer.model, step))
    read = [loss.item() for loss in steps]
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    assert not {"found_inf", "grad_scale"} & trainer.optimizer.__dict__.keys()
    engine.close()
    return engine.memory, trainer.model.state_dict(), read  # type: ignore[attr-defined]


def as_ever(model: nn.Module, step: int) -> None: ...


def clips_later(model: nn.Module, step: int) -> None:
    if step == 73:  # one pass more
        model(batch(1000)).square().mean().backward()
    if step > 95:  # from here on it changes with every step, of which a bad one is taken back
        model.get_buffer("table").add_(1.0)
    if step > 80:
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)


class Changing(Closing):
    """Now and then gradients are made before the step, all of them or some."""

    def step(self, closure: Callable[[], Tensor], step: int) -> Tensor:
        if step % 37 == 23:  # also a bad one
            read = closure()
            self.optimizer.step()
            return read
        if step == 125:  # with two passes a step cannot be skipped, nor any after it
            with pytest.raises(KeyError):
                super().step(lambda: {}[closure()], step)
        return super().step(closure, step)


@pytest.mark.parametrize(
    ("kind", "besides", "own"),
    [(Accelerated, as_ever, 60), (Changing, clips_later, 40)],
)
def test_the_steps_of_trainers_are_the_same(
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    stepped: list[bool],
    kind: Trainer,
    besides: Callable[[nn.Module, int], None],
    own: int,
) -> None:
    short = by_trainer(make_engine(device_path=True, budget=1.0, explain=False), kind, besides)
    assert sum(stepped) > own
    monkeypatch.setattr(StepBursts, "begin", lambda *_: None)
    long = by_trainer(make_engine(device_path=True, budget=1.0, explain=False), kind, besides)
    assert all(map(torch.equal, short[1].values(), long[1].values()))
    np.testing.assert_array_equal(short[2], long[2])
    assert short[1]["table"].tolist() == [1.0 if kind is Accelerated else float(STEPS - 95)] * 3
    same_rows(short[0], long[0])
    if kind is Accelerated:  # the variable that its root was made of reads as the last finite one
        assert np.isfinite(short[2]).all()
        assert short[2][60] == short[2][61] == pytest.approx(short[2][59])
        rows = short[0].rows()
        assert (rows["grad_norm"][:50] > 0.02).all()  # from before clipping, in whatever order


def test_buffers_go_with_their_model(make_engine: MakeEngine, stepped: list[bool]) -> None:
    engine, loop = make_engine(device_path=True, budget=1.0, explain=False), NormedLoop()
    for step in range(22):
        loop.loss(step).backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
    assert any(stepped) and engine.state.fast.bursts.now is not None
    table = weakref.ref(loop.model.table)
    del loop
    gc.collect()
    assert table() is None


def test_an_optimizer_that_is_freed_meanwhile_ends_nothing(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, stepped: list[bool]
) -> None:
    strays = [torch.optim.SGD([nn.Parameter(torch.zeros(1))]) for _ in range(8)]
    engine = make_engine(device_path=True, budget=1.0, explain=False)
    launch = StepBurst._launch

    def frees(self: StepBurst, found: Tensor | None) -> object:
        if strays:
            strays.pop()
        return launch(self, found)

    monkeypatch.setattr(StepBurst, "_launch", frees)
    memory, _, _ = trained(engine, Loop(), nothing)
    assert not strays and len(memory.rows()) == STEPS


def test_batches_belong_to_their_steps(make_engine: MakeEngine, stepped: list[bool]) -> None:
    engine = make_engine(device_path=True, budget=1.0, explain=False)
    loop = Loop()
    data = [batch(step)[0] for step in range(100, 196)]
    for _ in range(2):
        for x in DataLoader(data, batch_size=2):  # type: ignore[arg-type]
            (loop.model(x).square().mean() / 1).backward()
            loop.optimizer.step()
            loop.optimizer.zero_grad()
    engine.close()
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert sum(stepped) > 20 and not engine.off
    assert len(rows) == 96 and (rows["batch"][:48] == rows["batch"][48:]).all()
    assert len(set(rows["batch"].tolist())) == 48


def test_the_last_words_know_every_step(make_engine: MakeEngine, stepped: list[bool]) -> None:
    engine = make_engine(device_path=True, budget=1.0, explain=False)
    loop = Loop()
    loop.run(nothing)
    steps = STEPS
    while (now := engine.state.fast.bursts.now) is None or not now.noted:
        loop.loss(steps).backward()
        loop.optimizer.step()
        steps += 1
    engine.end(RuntimeError("the script crashes"))
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert rows["step"].tolist() == list(range(steps))


def test_a_row_is_written_when_the_last_phase_of_its_step_is_over(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The norms of a step are known before its optimizer is through; phases were lost by it."""

    class Late(host_kernels.Event):
        asked = 0

        def query(self) -> bool:
            self.asked += 1
            return self.asked > 1

        def record(self, *_: object) -> None:
            self.asked = 0

    host_kernels.install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "Event", Late)
    engine, loop = make_engine(device_path=True), Loop()
    for step in range(30):
        loop.loss(step).backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
    engine.close()
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert np.isfinite(rows["optimizer"][[8, 16, 24]]).all()


def test_a_device_is_reported_once_where_gradients_come_back_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host_kernels.install(monkeypatch)
    kernel = norm_kernel.NormKernel(torch.device("cpu"))
    reported: list[int] = []
    table = kernel._table
    monkeypatch.setattr(kernel, "_table", lambda count: reported.append(count) or table(count))
    monkeypatch.setattr(norm_kernel, "_REPORTED", 8)
    turns = [[torch.randn(3), torch.randn(5)] for _ in range(9)]
    for grads in (*turns[:3], *turns[:3], *turns, turns[8]):
        places = [grad.data_ptr() for grad in grads]
        assert kernel.place(grads, 2, places)
        assert kernel._addresses.tolist() == kernel.uploaded == places
        assert kernel._fixed[0] == kernel._addresses.data_ptr()
    assert len(reported) == 9 and len(kernel._reported) == 8
    kernel.place([torch.zeros(7)], 1, [4])
    assert kernel._addresses.tolist() == [4]


def test_a_step_that_a_graph_captures_is_left_alone(
    make_engine: MakeEngine, stepped: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, loop, captured = make_engine(device_path=True, budget=1.0), Loop(), 0
    for step in range(50):
        loop.loss(step).backward()
        now = engine.state.fast.bursts.now
        if step > 30 and now is not None and not captured:
            captured = step
            with monkeypatch.context() as patch:
                patch.setattr(burst, "stream_of", lambda device: 1)
                patch.setattr(burst, "capturing", lambda device: True)
                patch.setattr(optimizer_hooks, "out_of_reach", lambda: True)
                patch.setattr(burst_hooks, "out_of_reach", lambda: True)
                loop.optimizer.step()
            # Nothing of ours has run.
            assert engine.state.fast.bursts.now is now and not stepped[-1]
        else:
            loop.optimizer.step()
        loop.optimizer.zero_grad()
    engine.close()
    reported = engine.memory.of_kind("not_covered")  # type: ignore[attr-defined]
    assert captured and not engine.off
    assert ["CUDA graph" in one["why"] for one in reported] == [True]
    assert len(engine.memory.rows()) == 49  # type: ignore[attr-defined]


def test_watchers_see_the_steps_of_a_burst(
    make_engine: MakeEngine, stepped: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, original = list[int](), Watchers.step_ended

    def counted(self: Watchers, record: StepRecord, frame: FrameType) -> None:
        ended.append(record.step)
        assert record.row["guard"] > 0 and len(record.positions) == 4
        original(self, record, frame)

    monkeypatch.setattr(Watchers, "step_ended", counted)
    engine, loop = make_engine(Settings(), device_path=True, budget=1.0), Loop()
    kept: list[Tensor] = []
    for step in range(100):
        loop.loss(step % 50).backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        kept.append(torch.zeros(20_000))
    engine.close()
    assert sum(stepped) > 40 and not engine.off
    assert ended == list(range(100))
    found = engine.memory.of_kind("growth")  # type: ignore[attr-defined]
    assert {one["name"] for one in found} == {"kept"}


def test_batches_that_a_burst_holds_are_no_leak(
    make_engine: MakeEngine, stepped: list[bool]
) -> None:
    engine, loop = make_engine(Settings(), device_path=True, budget=1.0), Loop()
    data = [batch(step % 50) for step in range(120)]
    for x in DataLoader(data, batch_size=None):  # type: ignore[arg-type]
        loop.model(x).square().mean().backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
    engine.close()
    assert sum(stepped) > 60 and not engine.off
    assert not engine.memory.of_kind("growth")  # type: ignore[attr-defined]


def test_where_steps_are_long_no_batch_is_held_for_a_burst(
    make_engine: MakeEngine, stepped: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(device_path=True, budget=1.0)

    class Long(CostBudget):
        pace = property(lambda self: 0.1, lambda self, seconds: None)  # type: ignore[assignment]

    monkeypatch.setattr(engine.state.writer.budget, "__class__", Long)
    monkeypatch.setattr(bursts, "_LATE", 0.16)
    Loop().run(nothing)
    assert not stepped and not engine.off


def test_what_takes_turns_is_laid_out_once(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks with a head each, of other sizes: the tables of both stay on the device."""
    host_kernels.install(monkeypatch)
    made: list[list[int]] = []
    own = norm_kernel.Layout.of

    def counted(sizes: list[int], gradients: int, device: torch.device) -> object:
        made.append(sizes)
        return own(sizes, gradients, device)

    monkeypatch.setattr(norm_kernel.Layout, "of", counted)
    engine = make_engine(device_path=True)
    torch.manual_seed(0)
    body, heads = nn.Linear(4, 8), [nn.Linear(8, 1), nn.Linear(8, 3)]
    every = [*body.parameters(), *heads[0].parameters(), *heads[1].parameters()]
    optimizer = torch.optim.AdamW(every, lr=1e-2)
    for step in range(40):
        heads[step % 2](body(batch(step))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    engine.close()
    assert len(made) == 2
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert len(rows) == 40 and np.isfinite(rows["grad_norm"]).all()


def test_gradients_that_come_back_to_a_place_are_not_told_again(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An allocator hands out the same memory in turn: the device keeps what it was told of it."""
    host_kernels.install(monkeypatch)
    placed: list[list[int]] = []
    own = norm_kernel.NormKernel.place

    def counted(self: Any, measured: Any, gradients: int, addresses: list[int]) -> bool:
        placed.append(addresses)
        return own(self, measured, gradients, addresses)

    monkeypatch.setattr(norm_kernel.NormKernel, "place", counted)
    engine = make_engine(device_path=True)
    loop = Loop()
    parameters = list(loop.model.parameters())
    rooms = [[torch.empty_like(p) for p in parameters] for _ in range(3)]
    for step in range(STEPS):
        loop.model(batch(0)).square().mean().backward()
        for p, room in zip(parameters, rooms[step % 3], strict=True):
            p.grad = room.copy_(p.grad)  # type: ignore[arg-type]
        loop.optimizer.step()
        loop.optimizer.zero_grad()
    engine.close()
    assert len({tuple(one) for one in placed}) == 3
    assert len(placed) < STEPS / 2  # those outside of a burst
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert len(rows) == STEPS and np.isfinite(rows["grad_norm"]).all() and not engine.off
