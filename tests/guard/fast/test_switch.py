"""With the fence off every step takes the plain path, and comes to the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.guard.engine import Engine
from holdfast.guard.fast import direct_calls
from holdfast.guard.fast.burst import StepBurst
from holdfast.guard.fast.device_fast_path import DeviceFastPath
from holdfast.guard.fast.fast_path import FastPath
from holdfast.guard.fast.prepared_update import PreparedUpdate
from holdfast.records.columns import TIMES

from .. import host_kernels
from ..conftest import MakeEngine

# Times, and what is looked at in some steps only.
OTHER = {*TIMES, "time", "guard", "guard_device", "guard_hidden", "rss", "losses"}
SHORT_WAYS: list[tuple[Any, str]] = [
    *((FastPath, "open"), (DeviceFastPath, "open"), (StepBurst, "step_begins")),
    *((PreparedUpdate, "run"), (direct_calls, "backward"), (direct_calls, "clip")),
]


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Short ways that were taken or asked for."""
    found: set[str] = set()

    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if result is not None and result is not False:
                found.add(name)
            return result

        return call

    for owner, name in SHORT_WAYS:
        kind = getattr(owner, "__name__", "")
        monkeypatch.setattr(owner, name, watched(f"{kind}.{name}", getattr(owner, name)))
    return found


def train(engine: Engine) -> tuple[np.ndarray, list[torch.Tensor]]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    for step in range(60):
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
        if step == 50:
            x[3] = torch.nan
        model(x).square().mean().backward()
        if step < 30:
            nn.utils.clip_grad_norm_(list(model.parameters()), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    engine.close()
    assert not engine.off
    return engine.memory.rows(), [p.detach() for p in model.parameters()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("device_path", [False, True])
def test_without_fast_steps_everything_is_the_same(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, used: set[str], device_path: bool
) -> None:
    if device_path:
        host_kernels.install(monkeypatch)
    how: dict[str, Any] = {"device_path": device_path, "explain": False, "budget": 1.0}
    plain = train(make_engine(fast=False, **how))
    assert not used
    fast = train(make_engine(fast=True, **how))
    ways = {"DeviceFastPath.open", "StepBurst.step_begins"} if device_path else {"FastPath.open"}
    assert used >= ways | {"PreparedUpdate.run", "holdfast.guard.fast.direct_calls.backward"}
    assert len(plain[0]) == len(fast[0]) == 60 and plain[0]["skipped"].sum() == 1
    for name in {*(plain[0].dtype.names or ())} - OTHER:
        assert np.array_equal(plain[0][name], fast[0][name], equal_nan=True), name
    assert all(map(torch.equal, plain[1], fast[1]))


@pytest.mark.parametrize(("value", "on"), [("0", False), ("1", True), (None, True)])
def test_the_environment_decides_where_nobody_else_does(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, value: str | None, on: bool
) -> None:
    if value is None:
        monkeypatch.delenv("HOLDFAST_FAST", raising=False)
    else:
        monkeypatch.setenv("HOLDFAST_FAST", value)
    engine = make_engine()
    assert engine.state.fast.on is on and engine.may_rewrite is on
    assert make_engine(fast=not on).state.fast.on is not on
