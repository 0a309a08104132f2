"""Models learn few events by heart: gradients reach everything that has to change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ONE = ["tasks.angle.enabled=false", "model.channel_dropout_rate=0"]


def learned(
    parts: Any,
    batch: dict[str, Tensor],
    look: Callable[[], float],
    *,
    steps: int,
    lr: float,
    together: int = 16,
) -> tuple[float, float]:
    """What ``look`` says before and after steps of so many events together."""
    for one in parts.model.modules():
        if isinstance(one, nn.Dropout):
            one.p = 0.0
    before = look()
    optimizer = torch.optim.AdamW(parts.model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    torch.manual_seed(1)
    count = len(batch["run"])
    for step in range(steps):
        first = together * step % count
        some = {name: one[first : first + together] for name, one in batch.items()}
        loss, _ = parts.objective.loss(parts.model, some)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parts.model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return before, look()


@torch.no_grad()
def measured(parts: Any, batch: dict[str, Tensor], name: str) -> float:
    parts.model.eval()
    found = parts.objective.measure(parts.model, batch)[name]
    parts.model.train()
    return float(found)


def test_19_6_sixty_four_energies_are_learned_by_heart(parts_of: Any, batch_of: Any) -> None:
    parts, batch = parts_of("reg", *ONE, "tasks.energy.loss_fn=mse"), batch_of(64)
    before, after = learned(
        parts, batch, lambda: measured(parts, batch, "loss"), steps=320, lr=1e-3, together=8
    )
    assert after < before / 10, (before, after)


def test_17_17_times_in_seconds_are_learned(parts_of: Any, batch_of: Any) -> None:
    """With the small beta that the specification advises; absolute errors fall slowly."""
    more = ["tasks.energy.enabled=false", "tasks.timing.enabled=true"]
    parts, batch = parts_of("reg", *ONE, *more), batch_of(64)
    before, after = learned(parts, batch, lambda: measured(parts, batch, "loss"), steps=80, lr=4e-3)
    assert after < 0.8 * before, (before, after)


def test_19_6_the_light_of_sixty_four_events_is_reconstructed(parts_of: Any, batch_of: Any) -> None:
    parts = parts_of("mae", "model.predict_channels=[npho]")
    batch = batch_of(64)
    before, after = learned(
        parts, batch, lambda: measured(parts, batch, "loss_npho"), steps=60, lr=4e-3
    )
    assert after < before / 5, (before, after)
