"""Steps that are not torch's own: a script that lives without holdfast lives with it."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from holdfast.boot import patches

from . import foreign
from .conftest import MakeEngine
from .loops import differences

BAD = (3, 4, 9)
FIRST = (0, 3, 4, 9)
"""For what has to be seen once before a step of it can be undone, not."""
STEPS = 13


def train(
    make: Callable[[list[nn.Parameter]], Any], how: str, bad_steps: tuple[int, ...], *, poison: bool
) -> dict[str, Any]:
    """Poisoned, or without the poisoned steps; everything that may have changed."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = make(list(net.parameters()))
    given: list[Any] = []
    for step in range(STEPS):
        if step in bad_steps and not poison:
            continue
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))

        def loss_of(x: Tensor = x, bad: bool = step in bad_steps) -> Tensor:
            loss = net(x).square().mean() * (torch.nan if bad else 1.0)
            loss.backward()
            return loss

        if how == "closure":

            def closure(loss_of: Any = loss_of) -> Tensor:
                net.zero_grad()
                return loss_of()

            loss = optimizer.step(closure)
            assert isinstance(loss, Tensor)
        else:
            loss_of()
            optimizer.step()
            if how != "never cleared":
                net.zero_grad()
        if step not in bad_steps:
            given.append([None if p.grad is None else p.grad.clone() for p in net.parameters()])
    state = optimizer.state_dict() if hasattr(optimizer, "state_dict") else {}
    own = foreign.own_state(optimizer)
    return copy.deepcopy({"net": net.state_dict(), "state": state, "own": own, "grads": given})


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "clamped": foreign.Clamped,
    "langevin": foreign.Langevin,
    "counting": foreign.Counting,
    "strict": foreign.Strict,
    "adam with a step around it": foreign.CountingAdam,
    "lookahead": lambda p: foreign.Lookahead(optim.Adam(p, lr=0.05)),
    "lookahead around own": lambda p: foreign.Lookahead(foreign.Counting(p)),
    "hooked lookahead": lambda p: foreign.HookedLookahead(optim.SGD(p, lr=0.05, momentum=0.9)),
    "outside": lambda p: foreign.Averaging(optim.Adam(p, lr=0.05)),
}
WITH_CLOSURE = ("clamped", "counting", "strict", "adam with a step around it", "lookahead")


def compare(
    make_engine: MakeEngine,
    make: Callable[[Any], Any],
    how: str = "",
    *,
    bad: tuple[int, ...] = BAD,
    **guard: Any,
) -> list[str]:
    engine = make_engine(replay=False, explain=False, **guard)
    poisoned = train(make, how, bad, poison=True)
    engine.close()
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    make_engine(replay=False, explain=False, **guard)
    return differences(poisoned, train(make, how, bad, poison=False))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_skipped_step_leaves_nothing(make_engine: MakeEngine, optimizer: str) -> None:
    wraps = optimizer in ("lookahead", "lookahead around own", "outside")
    assert compare(make_engine, OPTIMIZERS[optimizer], bad=BAD if wraps else FIRST) == []


@pytest.mark.parametrize("optimizer", WITH_CLOSURE)
def test_a_skipped_step_with_a_closure_leaves_nothing(
    make_engine: MakeEngine, optimizer: str
) -> None:
    assert compare(make_engine, OPTIMIZERS[optimizer], "closure") == []


@pytest.mark.parametrize("optimizer", ["clamped", "counting", "hooked lookahead"])
def test_a_device_decides(make_engine: MakeEngine, optimizer: str) -> None:
    """Tensors and numbers the class keeps on itself are put back, a list of numbers is not."""
    found = compare(make_engine, OPTIMIZERS[optimizer], bad=FIRST, device_path=True)
    assert not [where for where in found if not where.startswith("/own/history")]


@pytest.mark.parametrize("to_none", [False, True])
def test_gradients_that_only_the_step_clears(make_engine: MakeEngine, to_none: bool) -> None:
    """Otherwise a NaN would stay in them, and every later step would be skipped."""

    def make(params: Any) -> Any:
        return foreign.Clearing(params, to_none=to_none)

    assert compare(make_engine, make, "never cleared") == []


def test_the_step_of_a_trainer_is_not_undone(make_engine: MakeEngine) -> None:
    """It is called as one of an optimizer, and has one; what it counts and logs is its own."""

    class Agent:
        def __init__(self) -> None:
            self.net = nn.Linear(2, 1)
            self.optimizer = foreign.Clamped(self.net.parameters())
            self.calls, self.losses = 0, list[float]()

        def step(self, bad: bool) -> None:
            loss = self.net(torch.ones(4, 2)).sum() * (torch.nan if bad else 1.0)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.calls += 1
            self.losses.append(loss.item())

    make_engine(explain=False, replay=False)
    agent = Agent()
    for step in range(6):
        agent.step(step == 3)
    assert agent.calls == len(agent.losses) == 6


def test_hooks_of_the_script_see_the_gradients(make_engine: MakeEngine) -> None:
    """Also those of one of torch's optimizers."""
    seen: list[float] = []

    def note(optimizer: Any, *_: Any) -> None:
        seen.append(optimizer.param_groups[0]["params"][0].grad.norm().item())

    engine = make_engine(explain=False, replay=False)
    net = nn.Linear(2, 1)
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(note)
    optimizer.register_step_post_hook(note)
    for step in range(5):
        (net(torch.ones(4, 2)).sum() * (torch.nan if step == 3 else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(seen) == 10 and [s != s for s in seen].count(True) == 2
    assert net.weight.isfinite().all() and not engine.off


def test_a_schedule_does_not_notice(make_engine: MakeEngine) -> None:
    """Torch warns where it is stepped before its optimizer, as after a step that is not called."""
    engine = make_engine(explain=False, replay=False)
    net = nn.Linear(2, 1)
    optimizer = foreign.Counting(net.parameters())
    schedule = optim.lr_scheduler.StepLR(optimizer, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(6):
            (net(torch.ones(4, 2)).sum() * (torch.nan if step in (0, 3) else 1.0)).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    assert optimizer.k == 4 and not engine.off


def test_classes_are_as_before_once_the_patches_are_out(make_engine: MakeEngine) -> None:
    """The wrapper goes with them; what optimizers there are goes on."""
    make_engine()
    before = foreign.Strict.__dict__["step"]
    optimizer = foreign.Strict([nn.Parameter(torch.ones(2))])
    assert hasattr(foreign.Strict.step, "_holdfast_skippable")
    patches.uninstall()
    assert not hasattr(foreign.Strict.step, "_holdfast_skippable")
    assert inspect.unwrap(foreign.Strict.step) is inspect.unwrap(before)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    optimizer.step()


def test_a_class_whose_step_a_schedule_holds_already(make_engine: MakeEngine) -> None:
    """Made before holdfast came: its step is called, and all of it is put back."""
    net = nn.Linear(2, 1)
    optimizer = foreign.Counting(net.parameters())
    schedule = optim.lr_scheduler.ConstantLR(optimizer)
    engine = make_engine(explain=False, replay=False)
    for step in range(6):
        before = copy.deepcopy(foreign.own_state(optimizer))
        (net(torch.ones(4, 2)).sum() * (torch.nan if step in (0, 3) else 1.0)).backward()
        optimizer.step()
        same = differences(before, foreign.own_state(optimizer)) == []
        assert same == (step in (0, 3)) and net.weight.isfinite().all()
        optimizer.zero_grad()
        schedule.step()
    assert not engine.off and optimizer.k == 4
