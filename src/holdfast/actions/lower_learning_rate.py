"""Lower every learning rate by a factor, and what schedules compute the next ones from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


def lower_learning_rates(
    optimizers: Iterable[Optimizer], schedulers: Iterable[Any], factor: float
) -> None:
    """Multiply the rates of all groups, also where they are tensors."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for key in ("lr", "initial_lr", "max_lr", "min_lr"):
                if isinstance(group.get(key), Tensor):
                    group[key].mul_(factor)
                elif isinstance(group.get(key), float | int):
                    group[key] *= factor
    for scheduler in schedulers:
        rates = getattr(scheduler, "base_lrs", None)
        if isinstance(rates, list):
            scheduler.base_lrs = [rate * factor for rate in rates]
