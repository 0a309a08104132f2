"""On the device path nothing of ours reads a tensor: forced onto CPU tensors, every read fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import holdfast
from holdfast.probes.loss import Losses

from .conftest import MakeEngine
from .test_exact_skip import OPTIMIZERS

# Not the patches: their frames enclose torch's own code.
ROOMS = ("guard", "probes", "actions")
OURS = tuple(str(Path(holdfast.__file__).parent / room) for room in ROOMS)
OPTIMIZERS_OF_TORCH = str(Path(torch.optim.__file__).parent)
HOOKS_OF_TORCH = str(Path(OPTIMIZERS_OF_TORCH) / "optimizer.py")
READS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")


class NoScalars(TorchDispatchMode):
    """Fails on the operation every scalar read ends in."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        assert "_local_scalar_dense" not in str(func), "a tensor was read on the host"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def no_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """From now on every read of a tensor by our own code is written down."""
    seen: list[str] = []

    def spy(name: str) -> Any:
        original = getattr(torch.Tensor, name)

        def read(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if _ours(sys._getframe(1)):
                seen.append(name)
            return original(self, *args, **kwargs)

        return read

    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, spy(name))
    yield seen


def _ours(frame: Any) -> bool:
    """Whether holdfast, or this file, asked for the read; optimizers may read what they like."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(OURS):
            return True
        if name.startswith(OPTIMIZERS_OF_TORCH) and name != HOOKS_OF_TORCH:
            return False  # in a step that one of our wrappers has called
        frame = frame.f_back
    return False


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steady_steps_read_nothing(
    make_engine: MakeEngine, no_reads: list[str], optimizer: str
) -> None:
    engine = make_engine(device_path=True, explain=False)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    opt = OPTIMIZERS[optimizer](net.parameters())
    x = torch.randn(16, 8)
    nan = torch.tensor(float("nan"))

    def step(bad: bool) -> None:
        loss = net(x).square().mean()
        (loss * nan if bad else loss).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        net.zero_grad()

    for _ in range(3):
        step(False)
    no_reads.clear()
    # One of them past the guard's first judgement of itself.
    steps = 140 if optimizer == "adamw" else 50
    for i in range(steps):
        step(i % 10 == 3)
    assert no_reads == []
    engine.close()
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    assert engine.memory.rows()["skipped"].sum() == steps // 10  # type: ignore[attr-defined]


def test_no_scalar_leaves_the_dispatcher(make_engine: MakeEngine) -> None:
    engine = make_engine(device_path=True, explain=False)
    net = nn.Linear(8, 8)
    opt = torch.optim.AdamW(net.parameters(), fused=True)
    x = torch.randn(4, 8)
    for i in range(40):
        loss = net(x).square().mean()
        (loss * float("nan") if i % 10 == 5 else loss).backward()
        with NoScalars() if i > 2 else torch.no_grad():
            opt.step()
        opt.zero_grad()
    engine.close()
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    assert engine.memory.rows()["skipped"].sum() == 4  # type: ignore[attr-defined]


def test_the_spies_see_a_read(no_reads: list[str]) -> None:
    losses = Losses()
    losses.saw(torch.ones(()))
    assert losses.on_host() == (1.0, False)
    assert no_reads == ["item"]
    with pytest.raises(AssertionError, match="read on the host"), NoScalars():
        torch.ones(()).item()
