"""How much Python a steady step runs: what the host time of the guard is made of, but for clocks.

Between the kernels of a training every function finds its code out of the processor's caches, so
that the number of calls says more than a clock on a busy machine.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import holdfast
from holdfast.guard.fast import bursts

from .. import host_kernels
from ..conftest import MakeEngine
from ..trainers import Accelerated, Closing, Trainer

# What comes with time, snapshots and checkpoints, is not part of every step.
OURS = tuple(
    str(Path(holdfast.__file__).parent / room)
    for room in ("boot", "guard", "probes", "actions", "run")
)
SETTLED = 130


def loop(kind: str, steps: int, each: Callable[[], None]) -> None:
    middle = [nn.BatchNorm1d(8) for _ in range(8)] if "normed" in kind else [nn.Tanh()]
    model = nn.Sequential(nn.Linear(8, 8), *middle, nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    passes = 4 if "accumulated" in kind else 1
    data = torch.randn(steps * passes, 4, 8, generator=torch.Generator().manual_seed(1))
    scaler = torch.amp.GradScaler("cpu", enabled="scaled" in kind)
    for turn, x in enumerate(DataLoader(data, batch_size=None), 1):  # type: ignore[arg-type]
        loss = model(x).square().mean() / passes
        scaler.scale(loss).backward()
        if turn % passes:
            continue
        if "clipped" in kind:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        each()


def in_turns(steps: int, each: Callable[[], None]) -> None:
    """Two models, each with a loss and an optimizer of its own."""
    models = [nn.Sequential(nn.Linear(8, n), nn.Tanh(), nn.Linear(n, 1)) for n in (8, 12)]
    optimizers = [torch.optim.AdamW(one.parameters(), lr=1e-3, fused=True) for one in models]
    data = torch.randn(steps, 4, 8, generator=torch.Generator().manual_seed(1))
    for x in DataLoader(data, batch_size=None):  # type: ignore[arg-type]
        for model, optimizer in zip(models, optimizers, strict=True):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        each()


def by_trainer(kind: Trainer, steps: int, each: Callable[[], None]) -> None:
    trainer = kind(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)))
    data = torch.randn(steps, 4, 8, generator=torch.Generator().manual_seed(1))
    for _ in trainer.steps(DataLoader(data, batch_size=None), lambda step: None):  # type: ignore[arg-type]
        each()


def count_calls(train: Callable[..., None]) -> list[int]:
    """How many functions of ours each step has called, once everything is settled."""
    counted: list[int] = []
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(OURS)

    def each() -> None:
        nonlocal calls
        counted.append(calls)
        calls = 0
        if len(counted) == SETTLED:
            sys.setprofile(count)

    before = sys.getprofile()
    try:
        train(steps=SETTLED + 60, each=each)
    finally:
        sys.setprofile(before)
    return counted[SETTLED + 1 :]


def is_ordinary(counted: list[int]) -> float:
    """Of a step in which nothing else is done: on a busy machine more of them have a snapshot."""
    return statistics.quantiles(counted, n=4)[0]


# With room for a few more than it needs. Most steps lie inside a burst.
@pytest.mark.parametrize(
    ("train", "most"),
    [
        (partial(loop, "normed"), 61),
        (partial(loop, "scaled and clipped, accumulated"), 144),
        (partial(by_trainer, Accelerated), 75),
        (partial(by_trainer, Closing), 61),
        (in_turns, 104),
    ],
    ids=["normed", "scaled", "accelerated", "closing", "turns"],
)
def test_a_steady_step_on_a_device_makes_few_calls(
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    train: Callable[..., None],
    most: int,
) -> None:
    host_kernels.install(monkeypatch)
    monkeypatch.setattr(bursts, "_LATE", 1e9)  # however slow the machine is
    engine = make_engine(device_path=True)
    counted = count_calls(train)
    assert not engine.off
    assert 30 < is_ordinary(counted) <= most
    assert statistics.mean(counted) <= 2 * most


def on_a_cpu(steps: int, each: Callable[[], None]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(steps, 4, 8, generator=torch.Generator().manual_seed(1))
    for x in DataLoader(data, batch_size=None):  # type: ignore[arg-type]
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        each()


def test_a_steady_step_on_a_cpu_makes_few_calls(make_engine: MakeEngine) -> None:
    engine = make_engine()
    counted = count_calls(on_a_cpu)
    assert not engine.off
    assert 30 < is_ordinary(counted) <= 72
    assert statistics.mean(counted) <= 132
