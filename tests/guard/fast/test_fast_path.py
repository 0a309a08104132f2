"""A step in few words is the step the long way: the same rows, the same weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from holdfast.guard.engine import Engine
from holdfast.guard.fast.device_fast_path import DeviceFastPath
from holdfast.guard.fast.fast_path import FastPath
from holdfast.records.columns import TIMES

from ..conftest import MakeEngine, MemoryRecorder

# Of the host, and of the clock.
# Times, and what is looked at in some steps: other ones on another path.
_OTHER = {*TIMES, "time", "guard", "guard_device", "guard_hidden", "rss", "losses"}


def parts(norm: bool = False) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    middle = nn.BatchNorm1d(8) if norm else nn.Tanh()
    model = nn.Sequential(nn.Linear(4, 8), middle, nn.Linear(8, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def batch(step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, 4, generator=generator)
    if step in (40, 41, 77):
        x[3] = torch.nan
    return x * (300.0 if step in (120, 150) else 1.0)


def plain(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(200):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()


def clipped(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(120):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        if step % 3:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


def accumulated(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(120):
        model(batch(step)).square().mean().backward()
        if step % 2 or step > 60:
            optimizer.step()
            optimizer.zero_grad()


def loaded(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    data = [batch(step)[0] for step in range(64)]
    for _ in range(6):
        for x in DataLoader(data, batch_size=4):  # type: ignore[arg-type]
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


def reloaded(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(90):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
        if step == 50:
            optimizer.load_state_dict(optimizer.state_dict())


def half_frozen(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(90):
        optimizer.zero_grad()
        next(model.parameters()).requires_grad_(step < 45)
        model(batch(step)).square().mean().backward()
        optimizer.step()


def thawed(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Frozen at first, trained later, with another rate."""
    first = next(model.parameters()).requires_grad_(False)
    for step in range(90):
        optimizer.zero_grad()
        if step == 45:
            first.requires_grad_(True)
            optimizer.param_groups[0]["lr"] = 1e-3
        model(batch(step)).square().mean().backward()
        optimizer.step()


def in_turns(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Two tasks, each of which has a head of its own."""
    first, _, last = model.children()
    for step in range(120):
        optimizer.zero_grad()
        x = batch(step)
        (first(x) if step % 2 else last(torch.cat([x, x], 1))).square().mean().backward()
        optimizer.step()


def grown(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Another parameter joins."""
    more = nn.Parameter(torch.ones(1))
    for step in range(90):
        optimizer.zero_grad()
        if step == 45:
            optimizer.add_param_group({"params": [more], "lr": 1e-4})
        (model(batch(step)) * (more if step > 50 else 1.0)).square().mean().backward()
        optimizer.step()


def replaced(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Gradients are kept, made by hand, and put in the place of others."""
    for step in range(90):
        optimizer.zero_grad(set_to_none=step % 3 == 0)
        model(batch(step)).square().mean().backward()
        weight = next(model.parameters())
        if step % 5 == 0:
            assert weight.grad is not None
            weight.grad = weight.grad * 0.5
        if step == 70:
            weight.grad = torch.full_like(weight, torch.inf)
        optimizer.step()


def two_losses(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A second optimizer, made later, with a loss of its own."""
    other: torch.optim.Optimizer | None = None
    own_part = nn.Parameter(torch.ones(4))
    for step in range(90):
        if step == 30:
            other = torch.optim.SGD([own_part], lr=1e-2)
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
        if other is not None:
            other.zero_grad()
            (own_part * batch(step)).square().mean().backward()
            other.step()


def always_clipped(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(120):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


def scaled(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=20)
    for step in range(120):
        optimizer.zero_grad()
        scaler.scale(model(batch(step)).square().mean()).backward()
        if step > 60:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()


def memory_of(engine: Engine) -> MemoryRecorder:
    return engine.memory  # type: ignore[attr-defined]


Loop = Callable[[nn.Module, torch.optim.Optimizer], None]
RARE = [thawed, grown, replaced]
LOOPS = [
    *(plain, clipped, accumulated, loaded, reloaded, half_frozen, in_turns),
    *(two_losses, always_clipped, scaled),
    *(pytest.param(loop, marks=pytest.mark.slow) for loop in RARE),
]
# Of a device only what is not the same code as on the host.
OFTEN = [plain, always_clipped, scaled, two_losses, grown, half_frozen]
ON_DEVICE = [
    *OFTEN,
    *(
        pytest.param(loop, marks=pytest.mark.slow)
        for loop in (clipped, accumulated, loaded, reloaded, thawed, replaced)
    ),
]


def trained(
    make_engine: MakeEngine, loop: Loop, norm: bool, *, device_path: bool = False
) -> tuple[MemoryRecorder, list[Tensor]]:
    # What is looked at less often must not depend on the clock.
    engine = make_engine(budget=1.0, device_path=device_path)
    model, optimizer = parts(norm)
    loop(model, optimizer)
    engine.close()
    return memory_of(engine), [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("norm", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("loop", LOOPS)
def test_both_ways_are_one(make_engine, monkeypatch, loop: Loop, norm: bool):
    short, here = trained(make_engine, loop, norm)
    monkeypatch.setattr(FastPath, "open", lambda *_: None)
    long, there = trained(make_engine, loop, norm)
    same(short, long)
    assert all(map(torch.equal, here, there))


@pytest.mark.parametrize("norm", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("loop", ON_DEVICE)
def test_both_ways_are_one_on_a_device(make_engine, monkeypatch, loop: Loop, norm: bool):
    opened: list[bool] = []
    original = DeviceFastPath.open

    def counted(self, *about):
        found = original(self, *about)
        opened.append(found is not None)
        return found

    monkeypatch.setattr(DeviceFastPath, "open", counted)
    short, here = trained(make_engine, loop, norm, device_path=True)
    assert sum(opened) > 10
    for way in ("open", "clip"):
        monkeypatch.setattr(DeviceFastPath, way, lambda *_: None)
    long, there = trained(make_engine, loop, norm, device_path=True)
    assert all(map(torch.equal, here, there))
    same(short, long)


def same(short: MemoryRecorder, long: MemoryRecorder) -> None:
    rows, others = short.rows(), long.rows()
    assert len(rows) == len(others)
    for column in rows.dtype.names or ():
        if column not in _OTHER:
            np.testing.assert_array_equal(rows[column], others[column], err_msg=column)
    assert [event[:2] for event in short.events] == [event[:2] for event in long.events]
    layers = [
        [payload[:8] for kind, payload in m.ring.records if kind == m.tables["layers0"]]
        for m in (short, long)
    ]
    assert layers[0] == layers[1]


def alike(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(200):
        optimizer.zero_grad()
        model(batch(0)).square().mean().backward()
        optimizer.step()


def frozen(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    next(model.parameters()).requires_grad_(False)
    alike(model, optimizer)


@pytest.mark.parametrize("loop", [alike, frozen, in_turns])
def test_most_steps_are_usual(make_engine, monkeypatch, loop: Loop):
    taken: list[bool] = []
    original = FastPath.open

    def counted(self, *about):
        opened = original(self, *about)
        taken.append(opened is not None)
        return opened

    monkeypatch.setattr(FastPath, "open", counted)
    make_engine()
    loop(*parts())
    assert sum(taken) > (0.6 if loop is in_turns else 0.9) * len(taken)


def test_a_steady_step_that_clips_reads_its_gradients_once(make_engine, monkeypatch):
    make_engine()
    asked: list[int] = []
    own = torch._foreach_norm
    monkeypatch.setattr(torch, "_foreach_norm", lambda *a: (asked.append(0), own(*a))[1])
    model, optimizer = parts()
    for step in range(100):
        optimizer.zero_grad()
        model(batch(0)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if step < 50:
            asked.clear()
    assert 50 <= len(asked) <= 60


def test_a_bad_gradient_goes_the_long_way(make_engine):
    engine = make_engine()
    model, optimizer = parts()
    for step in range(40):
        optimizer.zero_grad()
        model(batch(0)).square().mean().backward()
        weight = next(model.parameters())
        if step == 29:  # not one of the sampled steps
            assert weight.grad is not None
            weight.grad[2, 1] = torch.inf
        before = weight.detach().clone()
        optimizer.step()
        assert torch.equal(before, weight) == (step == 29)
    rows = memory_of(engine).rows()
    assert rows["skipped"].nonzero()[0].tolist() == [29]
