"""The trial of a rollback on the batch of the last step: both weights see the same data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from holdfast.config import Settings, load
from holdfast.recovery.trial import Trial, clearly_better
from holdfast.suspicion import Suspicion

from ..guard.conftest import MakeEngine

SETTINGS = ["rollback.every=8", "rollback.cost=1"]


class Waves(Dataset[Any]):
    """A regression whose targets become others from some sample on: a new stage."""

    def __init__(self, count: int, stage: int) -> None:
        self.x = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
        self.y = torch.sin(self.x.sum(1, keepdim=True))
        self.y[stage:] = 40 + 10 * self.y[stage:]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


def run(
    make_engine: MakeEngine,
    settings: Settings,
    *,
    stage: int = 10**6,
    damaged: int = -1,
    **guard: Any,
) -> tuple[Any, dict[str, Tensor], list[float]]:
    """220 steps; their scheduler counts how often it was really stepped."""
    engine = make_engine(settings, fused=False, **guard)
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.05), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    losses: list[float] = []
    for x, y in DataLoader(Waves(220 * 16, stage * 16), batch_size=16):
        if len(losses) == damaged:
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.mul_(30.0)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    engine.close()
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    assert scheduler.last_epoch == 220
    return engine.memory, net.state_dict(), losses  # type: ignore[attr-defined]


@pytest.mark.parametrize("device_path", [False, True])
def test_damaged_weights_are_taken_back(make_engine: MakeEngine, device_path: bool) -> None:
    settings = load(None, SETTINGS)
    memory, _, losses = run(make_engine, settings, damaged=150, device_path=device_path)
    (back,) = memory.of_kind("rollback")
    assert back["tried"] < 0.5 * back["before"]
    # The loss with the present weights is that of the same batch, which was handed out twice.
    assert (memory.rows()["loss"] == np.float32(back["before"])).sum() == 1
    assert len(losses) == 221
    assert sum(losses[-20:]) / 20 < 2.0


@pytest.mark.slow
@pytest.mark.parametrize("device_path", [False, True])
def test_a_new_stage_ends_with_the_weights_it_has_without_us(
    make_engine: MakeEngine, device_path: bool
) -> None:
    observe = load(None, [*SETTINGS, "policy.ALL=observe"])
    _, plain, _ = run(make_engine, observe, stage=150, device_path=device_path)
    # The steps of the new stage are not to be skipped either: only the trial is looked at.
    settings = load(None, [*SETTINGS, "policy.OPT002=observe"])
    memory, guarded, losses = run(make_engine, settings, stage=150, device_path=device_path)
    (trial,) = memory.of_kind("trial")
    assert trial["verdict"] == "data"
    assert trial["tried"] > trial["before"] > 100  # the new weights are better where it matters
    assert memory.of_kind("rollback") == []
    assert len(losses) == 221
    assert all(torch.equal(plain[name], guarded[name]) for name in plain)


@pytest.mark.parametrize(
    ("tried", "before", "better"),
    [
        (1.1, 10.0, True),
        (6.0, 10.0, False),  # half of the rise is left
        (1.4, 1.4, False),  # the trouble is over
        (1.45, 1.6, False),  # within the limit, and hardly better
        (1.1, math.nan, True),  # other data: the limit decides
        (1.6, math.nan, False),
    ],
)
def test_clearly_better(tried: float, before: float, better: bool) -> None:
    found = Suspicion("OPT001", "loss", 100, 95, 1.7, 1.0, 1.5)
    assert clearly_better(found, tried, before) is better


@pytest.mark.parametrize(
    ("why", "loss", "usual", "tried", "failed", "verdict"),
    [
        ("loss", 1.7, 1.0, 1.6, True, "data"),
        ("loss", 1.7, 1.0, 1.4, True, "no better"),  # the trouble is over
        ("loss", 1.7, 1.0, math.nan, True, "no better"),
        ("loss", 1.7, math.nan, 1.6, True, "no better"),
        ("nonfinite", math.nan, 1.0, math.nan, True, "nonfinite"),
        ("nonfinite", 0.9, 1.0, 0.8, False, "nonfinite"),  # its gradients were not finite
        ("nonfinite", math.nan, 1.0, 9.0, True, "no better"),
    ],
)
def test_the_verdict_of_a_trial_in_vain(
    why: str, loss: float, usual: float, tried: float, failed: bool, verdict: str
) -> None:
    found = Suspicion("OPT001", why, 100, 95, loss, usual, 1.5)
    nothing: Any = None
    trial = Trial(nothing, found, nothing, nothing, 5, 1.0, tried=tried, failed=failed)
    assert trial.verdict == verdict


@pytest.mark.parametrize(("tried", "better"), [(1.5, True), (4e10, True), (1.9e11, False)])
def test_clearly_better_where_nothing_is_known_after_a_rollback(tried: float, better: bool) -> None:
    found = Suspicion("OPT003", "loss", 166, 160, 2e11, math.nan, math.nan)
    assert clearly_better(found, tried, 2e11) is better
