"""Loops of many shapes, each with one fault: the cause must name the line marked with HERE."""

from __future__ import annotations

import inspect
import linecache
import os
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    OneCycleLR,
    SequentialLR,
)
from torch.utils.data import DataLoader, TensorDataset

from holdfast.diagnosis.nonfinite import rerun
from holdfast.diagnosis.nonfinite.observer import Observer
from holdfast.records.nonfinite import Cause
from tests.guard.conftest import MakeEngine

Loop = Callable[[], Any]


def only_cause(engine: Any) -> tuple[int, Cause]:
    engine.close()
    assert not engine.off, engine.memory.of_kind("holdfast_error")
    causes = [(step, data) for kind, step, data in engine.memory.events if kind == Cause.kind]
    assert len(causes) == 1, causes
    step, data = causes[0]
    return step, Cause.from_dict(data)


def marked_line(loop: Loop, mark: str = "# HERE") -> int:
    lines, start = inspect.getsourcelines(loop)
    return start + next(i for i, line in enumerate(lines) if mark in line)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def inline_loop() -> None:
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(6):
        x = torch.rand(3, 4)
        if i == 3:
            x[1] = 0
        opt.zero_grad()
        out = model(x)
        weight = x.sum(1).log()  # HERE
        loss = (out[:, 0] * weight).mean()
        loss.backward()
        opt.step()


def several_statements_on_a_line() -> None:
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(6):
        x = torch.rand(3, 4)
        if i == 3:
            x[1] = 0
        # fmt: off
        opt.zero_grad(); y = x.sum(1).log().dot(model(x)[:, 0]); y.backward(); opt.step()  # HERE  # noqa: E702
        # fmt: on


def loss_without_a_name() -> None:
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(6):
        x = torch.rand(3, 4)
        scale = 500.0 if i == 3 else 1.0
        opt.zero_grad()
        (model(x) + 1).abs().mul(scale).exp().mean().backward()  # HERE
        opt.step()


def loss_in_a_function() -> None:
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def criterion(out: torch.Tensor, n: int) -> torch.Tensor:
        total = out.square().sum()
        return total / torch.tensor(float(n)) - total / n if n else total / torch.zeros(())  # HERE

    for i in range(6):
        opt.zero_grad()
        loss = criterion(model(torch.rand(3, 4)), 0 if i == 3 else 3)
        loss.backward()
        opt.step()


def backward_in_a_helper() -> None:
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def finish(value: torch.Tensor) -> None:
        opt.zero_grad()
        value.backward()
        opt.step()

    for i in range(6):
        x = torch.rand(3, 4) if i != 3 else torch.full((3, 4), 1e30)
        out = (x * x).sum(1, keepdim=True)  # HERE
        finish((model(x) + out).mean())


def accumulation() -> None:
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(12):
        x = torch.rand(3, 4)
        loss = model(x).mean() + torch.sqrt(x[0, 0] * (-1 if i == 5 else 1))  # HERE
        (loss / 3).backward()
        if i % 3 == 2:
            opt.step()
            opt.zero_grad()


def unrolled() -> None:
    torch.manual_seed(0)
    cell, head = nn.GRUCell(2, 4), nn.Linear(4, 1)
    opt = torch.optim.Adam([*cell.parameters(), *head.parameters()])
    for i in range(5):
        x = torch.randn(3, 6, 2)
        h = torch.zeros(3, 4)
        losses = []
        for t in range(6):
            h = cell(x[:, t], h)
            base = head(h).mean() - (10 if i == 3 else -10)
            losses.append(base**0.5)  # HERE
        opt.zero_grad()
        torch.stack(losses).sum().backward()
        opt.step()


def branch_and_with() -> None:
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(6):
        x = torch.rand(3, 4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
        loss = out.float().mean()
        if i == 3:
            loss = (out.float() - out.float()).sum() / (x - x).sum()  # HERE
        opt.zero_grad()
        if i < 100:
            loss.backward()
        opt.step()


def masked_softmax() -> None:
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(6):
        scores = model(torch.rand(2, 5, 4))[..., 0]
        keep = torch.ones(2, 5, dtype=torch.bool)
        keep[0, 0] = False
        keep[1] = i != 3
        scores = scores.masked_fill(~keep, float("-inf"))
        attention = scores.softmax(-1)  # HERE
        loss = attention.square().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()


class Wrapper:
    """Divides a loss before it sends it back, as Accelerate does."""

    passes = 4

    def backward(self, loss: torch.Tensor, **more: Any) -> None:
        if self.passes > 1:
            loss = loss / self.passes
        loss.backward(**more)


def divided_by_a_wrapper() -> None:
    model, wrapper = net(), Wrapper()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(6):
        x = torch.rand(3, 4) * (i != 3)
        weight = x.sum(1).log()  # HERE
        loss = (model(x)[:, 0] * weight).mean()
        wrapper.backward(loss)
        opt.step()
        opt.zero_grad()


def batch_deleted_by_the_step() -> None:
    """As Transformers does: the caller still has what the function has let go."""
    model, wrapper = net(), Wrapper()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def training_step(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        inputs = {name: value.float() for name, value in inputs.items()}
        loss = model(inputs["x"])[:, 0].mul(inputs["x"].sum(1).log()).mean()  # HERE
        del inputs
        wrapper.backward(loss)
        return loss.detach()

    for i in range(6):
        inputs = {"x": torch.rand(3, 4) * (i != 3)}
        training_step(model, inputs)
        opt.step()
        opt.zero_grad()


def nan_written_down() -> None:
    """Nobody masks with NaN; what changes it in place afterwards is not to blame."""
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(6):
        loss = model(torch.rand(3, 4)).mean()
        if i == 3:
            loss = loss * float("nan")  # HERE
        loss *= 2
        loss.backward()
        opt.step()
        opt.zero_grad()


FORWARD = [
    batch_deleted_by_the_step,
    nan_written_down,
    divided_by_a_wrapper,
    inline_loop,
    several_statements_on_a_line,
    loss_without_a_name,
    loss_in_a_function,
    backward_in_a_helper,
    accumulation,
    unrolled,
    branch_and_with,
    masked_softmax,
]


@pytest.mark.parametrize("loop", FORWARD, ids=lambda loop: loop.__name__)
def test_forward(make_engine: MakeEngine, loop: Loop) -> None:
    engine = make_engine()
    loop()
    _, cause = only_cause(engine)
    assert cause.phase == "forward"
    assert (os.path.abspath(cause.file), cause.line) == (__file__, marked_line(loop))
    assert cause.how == "replay"
    assert cause.output is not None and cause.output.bad > 0
    assert any("# HERE" in text for _, text in cause.excerpt)


def square_root_at_zero() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2, bias=False)
    opt = torch.optim.Adam(model.parameters())
    for i in range(6):
        x = torch.rand(3, 4)
        if i == 3:
            x[1] = 0
        opt.zero_grad()
        distance = model(x).square().sum(1).sqrt()  # HERE
        loss = distance.mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()


def where_trap() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2, bias=False)
    opt = torch.optim.Adam(model.parameters())
    for i in range(6):
        x = torch.rand(3, 4)
        if i == 3:
            x[1] = 0
        z = model(x)
        size = z.abs() ** 0.5  # HERE
        loss = torch.where(z.abs() > 1e-6, size, torch.zeros_like(size)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


class Sharp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x.abs()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * x / x.abs()  # HERE, in the user's own backward


def own_backward() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2, bias=False)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(6):
        x = torch.rand(3, 4)
        if i == 3:
            x[1] = 0
        loss = Sharp.apply(model(x)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


@pytest.mark.parametrize(
    ("loop", "op"),
    [(square_root_at_zero, "SqrtBackward0"), (where_trap, "PowBackward0")],
    ids=["sqrt", "where"],
)
def test_backward(make_engine: MakeEngine, loop: Loop, op: str) -> None:
    engine = make_engine()
    loop()
    _, cause = only_cause(engine)
    assert (cause.phase, cause.op) == ("backward", op)
    assert (os.path.abspath(cause.file), cause.line) == (__file__, marked_line(loop))
    assert cause.inputs[0].zeros > 0


def test_the_line_inside_a_backward_of_the_users_own(make_engine: MakeEngine) -> None:
    engine = make_engine()
    own_backward()
    _, cause = only_cause(engine)
    assert cause.op == "SharpBackward"
    assert cause.line == marked_line(Sharp, "# HERE, in the user's own backward")


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"scale": Scaler()})
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner["scale"](x))


class Scaler(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.sum(1, keepdim=True)  # HERE


def by_sample(shuffle: bool = True) -> None:
    torch.manual_seed(0)
    data = torch.rand(40, 4) + 0.1
    data[17] = 0
    model = Encoder()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for (x,) in DataLoader(TensorDataset(data), batch_size=8, shuffle=shuffle):
            loss = model(x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()


@pytest.mark.parametrize("device_path", [False, True], ids=["host", "device"])
def test_module_and_sample(make_engine: MakeEngine, device_path: bool) -> None:
    """On the device path the poisoned batch goes through the loop once more."""
    engine = make_engine(device_path=device_path)
    by_sample()
    _, cause = only_cause(engine)
    assert (cause.sample, cause.samples_bad) == (17, 1)
    assert cause.module == "inner.scale"
    assert cause.line == marked_line(Scaler)
    assert cause.op == "div"
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert len(rows) == 10 + device_path
    assert rows["skipped"].sum() == 2 + device_path
    announced = engine.memory.of_kind("replay")  # type: ignore[attr-defined]
    assert announced == [{"batches": 1}] * device_path


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "onecycle": lambda opt: OneCycleLR(opt, max_lr=0.1, total_steps=5),
    "restarts": lambda opt: CosineAnnealingWarmRestarts(opt, T_0=3),
    "chained": lambda opt: ChainedScheduler([ExponentialLR(opt, 0.9)]),
    "sequential": lambda opt: SequentialLR(
        opt, [ExponentialLR(opt, 0.9), ExponentialLR(opt, 0.5)], milestones=[3]
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_replay_does_not_move_the_schedule_or_the_weights(
    make_engine: MakeEngine, schedule: str
) -> None:
    def train() -> tuple[list[torch.Tensor], float]:
        torch.manual_seed(0)
        data = torch.rand(40, 4) + 0.1
        data[17] = 0
        model = Encoder()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = SCHEDULES[schedule](opt)
        for (x,) in DataLoader(TensorDataset(data), batch_size=8):
            loss = model(x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            scheduler.step()
        return [p.detach().clone() for p in model.parameters()], opt.param_groups[0]["lr"]

    make_engine(device_path=True, explain=False)
    plain, rate = train()
    engine = make_engine(device_path=True)
    weights, same_rate = train()
    assert only_cause(engine)[1].sample == 17
    assert rate == same_rate
    assert all(torch.equal(a, b) for a, b in zip(plain, weights, strict=True))


def poisoned_batch() -> None:
    data = torch.rand(40, 4)
    data[23, 2] = float("nan")
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(TensorDataset(data), batch_size=8, shuffle=True):
        loss = model(x).square().mean()  # HERE
        opt.zero_grad()
        loss.backward()
        opt.step()


def test_data_already_bad(make_engine: MakeEngine) -> None:
    engine = make_engine()
    poisoned_batch()
    _, cause = only_cause(engine)
    assert (cause.phase, cause.sample) == ("input", 23)
    assert cause.line == marked_line(poisoned_batch)


def closure_of_lbfgs() -> None:
    model = net()
    opt = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
    x = torch.rand(8, 4)
    for i in range(4):
        scale = torch.tensor(0.0 if i == 3 else 1.0)

        def closure(scale: torch.Tensor = scale) -> torch.Tensor:
            opt.zero_grad()
            loss = model(x).square().mean() / scale  # HERE
            loss.backward()
            return loss

        opt.step(closure)


def test_a_step_that_cannot_be_skipped_is_explained_all_the_same(make_engine: MakeEngine) -> None:
    engine = make_engine()
    closure_of_lbfgs()
    _, cause = only_cause(engine)
    assert (cause.phase, cause.op) == ("forward", "div")
    assert cause.line == marked_line(closure_of_lbfgs)


def batches_of_a_list() -> None:
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, x in enumerate([torch.rand(3, 4) for _ in range(6)]):
        y = x.sum(1, keepdim=True)
        if i == 3:
            x = x - x
            x = x / x.std()  # HERE
        loss = (model(x) - y).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


def test_data_that_the_loop_has_overwritten(make_engine: MakeEngine) -> None:
    """What x was is gone: the line that gave it last is named."""
    engine = make_engine()
    batches_of_a_list()
    _, cause = only_cause(engine)
    assert (cause.phase, cause.variable) == ("input", "x")
    assert cause.line == marked_line(batches_of_a_list)


def test_statistics_the_step_itself_has_spoilt_are_not_blamed(make_engine: MakeEngine) -> None:
    engine = make_engine()
    torch.manual_seed(0)
    data = torch.rand(40, 4)
    data[23, 2] = float("inf")
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(TensorDataset(data), batch_size=8):
        loss = model(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    _, cause = only_cause(engine)
    assert (cause.phase, cause.sample) == ("input", 23)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_parameter_already_bad(make_engine: MakeEngine, value: float) -> None:
    engine = make_engine()
    model = net()
    with torch.no_grad():
        model[2].weight[0, 3] = value  # type: ignore[index]
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.rand(3, 4)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    _, cause = only_cause(engine)
    assert (cause.phase, cause.layer) == ("parameter", "2.weight")


def carried_state() -> None:
    """The state of the step before is overwritten: it cannot be computed again."""
    torch.manual_seed(0)
    cell, head = nn.GRUCell(2, 4), nn.Linear(4, 1)
    opt = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)
    h = torch.zeros(3, 4)
    for i in range(8):
        h = cell(torch.randn(3, 2), h.detach())
        loss = torch.log(head(h).mean() * 0.0 + (i not in (3, 4)))  # HERE
        opt.zero_grad()
        loss.backward()
        opt.step()


def test_what_cannot_be_repeated_is_caught_the_next_time(make_engine: MakeEngine) -> None:
    engine = make_engine()
    carried_state()
    step, cause = only_cause(engine)
    assert (cause.how, step) == ("next", 4)
    assert cause.line == marked_line(carried_state)


def test_on_the_device_the_next_occurrence_is_examined_at_once(make_engine: MakeEngine) -> None:
    engine = make_engine(device_path=True)
    torch.manual_seed(0)
    model = nn.Linear(4, 2, bias=False)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(40):
        x = torch.rand(3, 4)
        x[1] = 0 if i in (3, 30) else 1
        loss = model(x).square().sum(1).sqrt().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    step, cause = only_cause(engine)
    assert (step, cause.op) == (30, "SqrtBackward0")


def test_nothing_is_left_switched_on(make_engine: MakeEngine) -> None:
    engine = make_engine()
    hooks = dict(nn.modules.module._global_forward_hooks)
    inline_loop()
    square_root_at_zero()
    engine.close()
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None  # type: ignore
    assert not torch.is_anomaly_enabled()
    assert dict(nn.modules.module._global_forward_hooks) == hooks


def test_switched_off(make_engine: MakeEngine) -> None:
    engine = make_engine(explain=False)
    inline_loop()
    engine.close()
    assert "cause" not in [kind for kind, *_ in engine.memory.events]  # type: ignore[attr-defined]


def test_counters_do_not_notice(make_engine: MakeEngine) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.inner(x)

    class Trainer:
        def __init__(self) -> None:
            self.model = Counting()
            self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.losses = 0

        def loss(self, i: int) -> torch.Tensor:
            self.losses += 1
            return torch.log(self.model(torch.rand(3, 4)).mean() * 0.0 + (i != 3))

        def fit(self) -> None:
            for i in range(6):
                loss = self.loss(i)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()

    engine = make_engine()
    trainer = Trainer()
    trainer.fit()
    assert only_cause(engine)[1].op == "log"
    assert (trainer.losses, trainer.model.calls) == (6, 6)


def test_an_profile_leaves_running_statistics_alone(make_engine: MakeEngine) -> None:
    """Where nothing is skipped nobody else puts them back."""

    def train() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(6):
            loss = model(torch.rand(8, 4)).mean()
            loss = loss + torch.log(loss.detach() * 0.0 + (i != 3))
            opt.zero_grad()
            loss.backward()
            opt.step()
        return [b.clone() for b in model.buffers()]

    make_engine(skip=False, explain=False)
    plain = train()
    engine = make_engine(skip=False)
    same = train()
    assert only_cause(engine)[1].op == "log"
    assert all(torch.equal(a, b) for a, b in zip(plain, same, strict=True))


def test_a_buffer_the_users_graph_has_saved(make_engine: MakeEngine) -> None:
    """The profile runs between forward and backward: its own forward must not show in there."""

    class Drifting(nn.Module):
        scale: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)
            self.register_buffer("scale", torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.scale.add_(0.01)
            return self.inner(x) * self.scale

    engine = make_engine()
    model = Drifting()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(6):
        loss = torch.log(model(torch.rand(3, 4)).mean() * 0.0 + (i != 3))
        opt.zero_grad()
        loss.backward()
        opt.step()
    assert only_cause(engine)[1].op == "log"


def test_a_step_that_was_taken_is_not_replayed(make_engine: MakeEngine) -> None:
    engine = make_engine(skip=False, device_path=True)
    by_sample()
    engine.close()
    assert len(engine.memory.rows()) == 10  # type: ignore[attr-defined]


def test_a_loss_that_cannot_be_computed_twice(make_engine: MakeEngine) -> None:
    engine = make_engine()
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: set[int] = set()

    def once(i: int, out: torch.Tensor) -> torch.Tensor:
        if i in seen:
            raise RuntimeError("only once")
        seen.add(i)
        return torch.log(out.mean() * 0.0 + (i != 3))

    for i in range(6):
        loss = once(i, model(torch.rand(3, 4)))
        opt.zero_grad()
        loss.backward()
        opt.step()
    engine.close()
    assert not engine.off
    assert engine.memory.rows()["skipped"].sum() == 1  # type: ignore[attr-defined]


def test_a_storm_is_examined_once(make_engine: MakeEngine) -> None:
    engine = make_engine()
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(50):
        loss = torch.log(model(torch.rand(3, 4)).mean() * 0.0)
        opt.zero_grad()
        loss.backward()
        opt.step()
    engine.close()
    events = engine.memory.events  # type: ignore[attr-defined]
    assert len([1 for kind, *_ in events if kind == "cause"]) == 1


def test_code_without_source_is_no_reason_to_fail(make_engine: MakeEngine) -> None:
    engine = make_engine()
    source = textwrap.dedent(inspect.getsource(inline_loop))
    scope = {"torch": torch, "net": net}
    exec(compile(source, "<string>", "exec"), scope)
    scope["inline_loop"]()  # type: ignore[operator]
    linecache.checkcache()
    engine.close()
    assert not engine.off
    assert engine.memory.rows()["skipped"].sum() == 1  # type: ignore[attr-defined]


def test_steps_do_as_much_after_an_profile_as_before(make_engine: MakeEngine) -> None:
    """A mode or a hook left switched on would make every later step slower."""
    engine = make_engine()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(6)))
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    calls: list[int] = []

    def count(frame: Any, event: str, arg: Any) -> None:
        calls[-1] += event in ("call", "c_call")

    for i in range(100):
        calls.append(0)
        sys.setprofile(count)
        out = model(torch.rand(8, 16)).square().mean()
        loss = torch.log(out) if i != 50 else torch.log(out - out)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sys.setprofile(None)
    assert only_cause(engine)[1].op == "log"
    # The least of each: on some steps holdfast measures more.
    assert min(calls[51:]) <= min(calls[25:50]) < calls[50]


@pytest.mark.parametrize(
    "part",
    [
        "_look",
        *(pytest.param(p, marks=pytest.mark.slow) for p in ("_known", "_claim", "_look_at_node")),
    ],
)
@pytest.mark.parametrize("device_path", [False, True], ids=["host", "device"])
def test_an_observer_that_fails_never_reaches_the_users_code(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, part: str, device_path: bool
) -> None:
    def boom(*_: Any) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(Observer, part, boom)
    engine = make_engine(device_path=device_path)
    carried_state()
    square_root_at_zero()
    by_sample()
    engine.close()
    assert not engine.off
    assert engine.memory.rows()["skipped"].sum() >= 5  # type: ignore[attr-defined]


look = rerun.calls_of_backward


def between() -> Any:
    return list(look(sys._getframe()))


def test_a_function_without_a_backward_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a loop and its optimizer a framework may have many frames, in files of its own."""
    read, function = list[str](), rerun._function

    def reading(frame: Any) -> Any:
        read.append(frame.f_code.co_name)
        return function(frame)

    monkeypatch.setattr(rerun, "_function", reading)

    def loop() -> Any:
        (lambda: sys.manual_backward())  # type: ignore[attr-defined]
        return between()

    ((frame, call),) = [found for found in loop() if found[0].f_code.co_name == "loop"]
    assert frame.f_code is loop.__code__ and call.lineno == loop.__code__.co_firstlineno + 1
    assert read[0] == "loop"
