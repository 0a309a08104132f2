"""The short way through an optimizer's step: the same bits, and nobody who listens is left out."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from holdfast.actions.switch_to_fused import BY_FOREACH
from holdfast.boot import _optimizer_patches, patches
from holdfast.guard.fast.prepared_update import STEPS
from holdfast.guard.fast.torch_time_saved import TorchTimeSaved
from holdfast.records.times import TimeSaved

KINDS = _optimizer_patches._KINDS


class Spy:
    """In the engine's place: counts the steps it is told of."""

    def __init__(self) -> None:
        self.began = self.ended = 0
        self.may_rewrite = True
        self.reported: list[TimeSaved] = []
        self.torch_time_saved = TorchTimeSaved(self.reported.append)
        self.compares = self.torch_time_saved.turn

    def copied(self, seconds: float) -> None: ...

    def backward_begins(self, tensors: object) -> None: ...

    def backward_ends(self, *, freed: bool = False) -> None: ...

    def made(self, optimizer: object) -> None: ...

    def registers(self, module: object) -> None: ...

    def leaves(self, optimizer: object) -> None: ...

    def scheduled(self, scheduler: object) -> bool:
        return True

    class inquiry:
        replaying = False

    def step_begins(self, *_: object) -> None:
        self.began += 1

    def step_ends(self, _: object) -> None:
        self.ended += 1


@pytest.fixture
def spy() -> Iterator[Spy]:
    spy = Spy()
    patches.install(lambda: spy)  # type: ignore[arg-type,return-value]
    yield spy
    patches.uninstall()


@pytest.fixture
def wrapped(spy: Spy, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the spans that torch opens, which it does only on the long way."""
    spans: list[str] = []
    whole = torch.autograd.profiler.record_function.__enter__

    def enter(self: Any) -> Any:
        spans.append(self.name)
        return whole(self)

    monkeypatch.setattr(torch.autograd.profiler.record_function, "__enter__", enter)
    return spans


def make(kind: str = "AdamW", cls: Any = None, **options: Any) -> tuple[list[Tensor], Any]:
    torch.manual_seed(0)
    weights: list[Tensor] = [nn.Parameter(torch.randn(3, 4)) for _ in range(3)]
    return weights, (cls or getattr(torch.optim, kind))(weights, lr=0.1, **options)


def train(weights: list[Tensor], optimizer: Any, steps: int = 3) -> list[Tensor]:
    for step in range(steps):
        optimizer.zero_grad()
        torch.stack([(w * (step + 1)).square().sum() for w in weights]).sum().backward()
        optimizer.step()
    return [w.detach() for w in weights]


@pytest.mark.parametrize("kind", KINDS)
def test_same_bits_without_what_torch_wraps_around(kind: str, wrapped: list[str]) -> None:
    short = train(*make(kind))
    assert not wrapped
    patches.uninstall()
    plain = train(*make(kind))
    assert any(kind in span for span in wrapped)
    assert all(torch.equal(a, b) for a, b in zip(short, plain, strict=True))


def test_on_request_all_goes_torchs_way(spy: Spy, wrapped: list[str]) -> None:
    spy.may_rewrite = False
    train(*make("AdamW"), steps=1)
    assert len(wrapped) == 2
    assert (spy.began, spy.ended) == (1, 1)


def test_the_engine_is_reported_of_every_step_and_gradients_are_recorded_again(spy: Spy) -> None:
    train(*make())
    assert (spy.began, spy.ended) == (3, 3)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("kind", ["Adam", "Adagrad"])
def test_only_while_a_step_is_at_work_its_groups_say_that_it_runs_by_foreach(
    spy: Spy, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, optimizer = make(kind)
    patches.uninstall()
    forms: list[object] = []
    whole = getattr(torch.optim, kind)._init_group
    monkeypatch.setattr(
        getattr(torch.optim, kind),
        "_init_group",
        lambda self, group, *a: (forms.append(group["foreach"]), whole(self, group, *a))[1],
    )
    patches.install(lambda: spy)  # type: ignore[arg-type,return-value]
    vars(optimizer)[BY_FOREACH] = True
    train(weights, optimizer)
    assert forms and set(forms) == {True}
    assert optimizer.param_groups[0]["foreach"] is None
    monkeypatch.setattr(getattr(torch.optim, kind), "_init_group", lambda *a: 1 / 0)
    STEPS[id(optimizer)]().drop()  # type: ignore[union-attr]
    with pytest.raises(ZeroDivisionError):
        optimizer.step()
    assert optimizer.param_groups[0]["foreach"] is None


def test_a_profiler_sees_its_spans(spy: Spy) -> None:
    weights, optimizer = make()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        train(weights, optimizer, steps=1)
    names = {event.key for event in profile.key_averages()}
    assert {"Optimizer.step#AdamW.step", "Optimizer.zero_grad#AdamW.zero_grad"} <= names
    assert spy.ended == 1


def test_hooks_of_others_are_called(spy: Spy) -> None:
    calls: list[str] = []
    weights, optimizer = make()
    own = optimizer.register_step_post_hook(lambda *_: calls.append("mine"))
    train(weights, optimizer, steps=1)
    own.remove()
    everybody = register_optimizer_step_pre_hook(lambda *_: calls.append("everybody"))
    train(weights, optimizer, steps=1)
    everybody.remove()
    train(weights, optimizer, steps=1)
    assert calls == ["mine", "everybody"]
    assert (spy.began, spy.ended) == (3, 3)


@pytest.mark.parametrize("inherits", [True, False])
def test_subclasses_are_reported_of_once(
    spy: Spy, monkeypatch: pytest.MonkeyPatch, inherits: bool
) -> None:
    # As at the start of a run: once an SGD was made, torch has wrapped its step for good.
    patches.uninstall()
    bare = torch.optim.SGD.step
    while getattr(bare, "hooked", False):
        bare = bare.__wrapped__  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.optim.SGD, "step", bare)
    patches.install(lambda: spy)  # type: ignore[arg-type,return-value]

    class Inheriting(torch.optim.SGD):
        pass

    class Overriding(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    train(*make(cls=Inheriting if inherits else Overriding))
    assert (spy.began, spy.ended) == (3, 3)
    patches.uninstall()


def test_a_step_that_a_library_wraps_for_the_whole_class_is_still_told_of(
    spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = torch.optim.SGD.step, []

    @functools.wraps(whole)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(self)
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.SGD, "step", step)
    train(*make("SGD"))
    assert len(calls) == 3
    assert (spy.began, spy.ended) == (3, 3)


def test_what_was_wrapped_before_us_is_called(spy: Spy, monkeypatch: pytest.MonkeyPatch) -> None:
    patches.uninstall()
    whole, calls = torch.optim.Adam.step, []

    @functools.wraps(whole)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(self)
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", step)
    patches.install(lambda: spy)  # type: ignore[arg-type,return-value]
    train(*make("Adam"))
    patches.uninstall()
    assert len(calls) == 3
    assert (spy.began, spy.ended) == (3, 3)


def test_a_closure_and_a_schedule_go_as_ever(spy: Spy, wrapped: list[str]) -> None:
    weights, optimizer = make("SGD")
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def closure() -> float:
        optimizer.zero_grad()
        loss = torch.stack([w.square().sum() for w in weights]).sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) > optimizer.step(closure=closure) > 0
    assert optimizer.step(None) is None
    assert (spy.began, spy.ended) == (3, 3)
    assert not wrapped and torch.is_grad_enabled()
    schedule.step()
    train(weights, optimizer, steps=1)
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.025
    assert (spy.began, spy.ended) == (4, 4)


def test_a_differentiable_step_records_its_graph(spy: Spy) -> None:
    weights, optimizer = make("SGD", differentiable=True)
    copies = [w.clone() for w in weights]
    optimizer.param_groups[0]["params"] = copies
    for copy in copies:
        copy.grad = torch.ones_like(copy)
    optimizer.step()
    assert all(copy.grad_fn is not None for copy in copies)


def test_an_error_in_a_step_reaches_the_script(spy: Spy) -> None:
    weights, optimizer = make()
    train(weights, optimizer, steps=1)
    optimizer.state[weights[0]]["exp_avg"] = torch.zeros(7, 7)
    with pytest.raises(RuntimeError):
        train(weights, optimizer, steps=1)
    assert (spy.began, spy.ended) == (2, 1)
    assert torch.is_grad_enabled()


def test_gradients_are_set_to_zero_where_asked_for(spy: Spy) -> None:
    weights, optimizer = make()
    train(weights, optimizer, steps=1)
    optimizer.zero_grad(set_to_none=False)
    assert all(w.grad is not None and not w.grad.any() for w in weights)
    optimizer.zero_grad()
    assert all(w.grad is None for w in weights)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_a_compiled_step_is_traced_as_without_us(spy: Spy) -> None:
    weights, optimizer = make("SGD")
    plain_weights, plain = make("SGD")
    compiled = torch.compile(optimizer.step, backend="eager")
    for group in (weights, plain_weights):
        torch.stack([w.square().sum() for w in group]).sum().backward()
    compiled()
    plain.step()
    assert all(torch.equal(a, b) for a, b in zip(weights, plain_weights, strict=True))
