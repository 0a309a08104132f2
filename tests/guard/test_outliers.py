"""Clipping in the step itself: the same gradients as torch's own functions leave."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import utils

from holdfast.config import load

from .conftest import MakeEngine


def step(net: nn.Module, factor: float = 1.0, *, loss: float = 1.0) -> None:
    """Gradients large enough for any limit here, ``factor`` times as large as usual."""
    torch.manual_seed(2)
    net.zero_grad()
    (30 * loss * net(torch.randn(8, 4)).square().mean()).backward()
    if factor != 1.0:
        for parameter in net.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(factor)


def by_torch(how: str, net: nn.Module) -> None:
    parameters = list(net.parameters())
    if how == "norm":
        utils.clip_grad_norm_(parameters, 0.5)
    elif how == "value":
        utils.clip_grad_value_(parameters, 0.01)
    else:
        for parameter in parameters:
            utils.clip_grad_norm_([parameter], 0.1)


# The loops here have no loader: a finite step is skipped only where that was asked for.
ASKED = load(None, ["policy.OPT002=[skip, clip]"])
OURS = {"norm": "clip.norm=0.5", "value": "clip.value=0.01", "each": "clip.per_parameter=0.1"}


@pytest.mark.parametrize("how", OURS)
@pytest.mark.parametrize("device_path", [False, True])
@pytest.mark.parametrize("theirs", [False, True], ids=["alone", "after the user's"])
def test_as_torch_clips(make_engine: MakeEngine, how: str, device_path: bool, theirs: bool) -> None:
    nets: list[nn.Module] = []
    for ours in (False, True):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        if ours:
            make_engine(load(None, [OURS[how]]), device_path=device_path, fused=False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            step(net)
            if theirs:
                utils.clip_grad_norm_(net.parameters(), 2.0)
            if not ours:
                by_torch(how, net)
            optimizer.step()
        nets.append(net)
    for plain, guarded in zip(*(n.parameters() for n in nets), strict=True):
        torch.testing.assert_close(plain, guarded)


@pytest.mark.parametrize("device_path", [False, True])
def test_a_step_below_the_limit_is_left_as_it_is(
    make_engine: MakeEngine, device_path: bool
) -> None:
    engine = make_engine(load(None, ["clip.norm=1e6"]), device_path=device_path)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    step(net)
    assert net.weight.grad is not None
    before = net.weight.grad.clone()
    optimizer.step()
    assert torch.equal(before, net.weight.grad)
    engine.close()
    assert engine.memory.rows()["clip"].tolist() == [1.0]  # type: ignore[attr-defined]


@pytest.mark.parametrize("device_path", [False, True])
def test_adaptive_clipping_follows_the_run(make_engine: MakeEngine, device_path: bool) -> None:
    engine = make_engine(load(None, ["clip.adaptive=true"]), device_path=device_path)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    for i in range(60):
        step(net, 6.0 if i == 50 else 1.0)
        optimizer.step()
    engine.close()
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert rows["outlier"].tolist()[50] == 0  # six times the usual: no explosion, but clipped
    assert rows["clip"][50] == pytest.approx(2 / 6, rel=1e-3)
    assert (rows["clip"][:50] == 1).all()


def test_clipping_begins_with_an_explosion_and_ends(make_engine: MakeEngine) -> None:
    engine = make_engine(ASKED)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    for i in range(200):
        step(net, {60: 1000.0, 70: 5.0, 190: 5.0}.get(i, 1.0))
        optimizer.step()
    engine.close()
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert rows["step"][rows["skipped"] > 0].tolist() == [60]
    assert rows["step"][rows["clip"] < 1].tolist() == [70]
    reported = engine.memory.of_kind("clipping")  # type: ignore[attr-defined]
    assert [event["on"] for event in reported] == [True, False]


def test_a_user_who_clips_is_not_overruled_by_a_norm_alone(make_engine: MakeEngine) -> None:
    engine = make_engine(ASKED)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    for i in range(60):
        step(net, loss=1000.0 if i == 50 else 1.0)
        utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    engine.close()
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    # The loss was as far from usual as the norm: this one is left out all the same.
    assert rows["outlier"][50] == 3
    assert rows["skipped"].sum() == 1

    engine = make_engine(ASKED)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    for i in range(60):
        step(net, 1000.0 if i == 50 else 1.0)
        utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    engine.close()
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert rows["outlier"][50] == 0
    assert rows["skipped"].sum() == 0


@pytest.mark.parametrize("device_path", [False, True])
def test_a_scale_that_changes_is_no_explosion(make_engine: MakeEngine, device_path: bool) -> None:
    engine = make_engine(load(None, ["clip.norm=0.5"]), device_path=device_path)
    nets: list[nn.Module] = []
    for scaled in (True, False):
        torch.manual_seed(1)
        net = nn.Linear(4, 1)
        nets.append(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, fused=True)
        scaler: Any = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=2.0**10)
        for i in range(60):
            torch.manual_seed(i)
            optimizer.zero_grad()
            scaler.scale(net(torch.randn(8, 4)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update(2.0**16 if i == 40 else None)
    engine.close()
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert np_max(rows["outlier"]) == 0
    assert not engine.off
    torch.testing.assert_close(*(list(n.parameters()) for n in nets))


def np_max(values: Any) -> float:
    return max(v for v in values.tolist() if not math.isnan(v))
