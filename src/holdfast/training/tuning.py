"""The settings of optimizer and schedule as part of a run's state, so that a change is noticed.

A checkpoint brings back the rates, decay and betas it was saved with. Where the settings of the
resumed run say otherwise, they win:

    >>> import torch
    >>> from holdfast.training.optimizers import make_optimizer
    >>> model = torch.nn.Linear(2, 1)
    >>> def made(lr):
    ...     settings = OptimizerSettings(lr=lr)
    ...     optimizer = make_optimizer(model, settings, torch.device("cpu"))
    ...     schedule = Schedule(optimizer, ScheduleSettings(), steps=None)
    ...     return optimizer, Tuning(optimizer, schedule, settings, ScheduleSettings(), None)
    >>> saved = made(1e-3)[1].state_dict()
    >>> optimizer, tuning = made(1e-4)
    >>> tuning.load_state_dict(saved)
    >>> tuning.changes, optimizer.param_groups[0]["lr"]
    (['train.optimizer.lr 0.001 -> 0.0001'], 0.0001)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from ..config import to_dict
from .optimizers import NUMBERS, OptimizerSettings
from .schedules import Schedule, ScheduleSettings

_LENGTH = "steps of the schedule"


class Tuning:
    """What optimizer and schedule were made with; part of every checkpoint.

    It must be loaded after both of them.

    Args:
        optimizer: as it was made, its schedule already in charge of the rates.
        schedule: of that optimizer.
        settings: of the optimizer.
        schedule_settings: of the schedule.
        steps: of the whole run, None if unknown.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedule: Schedule,
        settings: OptimizerSettings,
        schedule_settings: ScheduleSettings,
        steps: int | None,
    ) -> None:
        self.changes: list[str] = []
        """What was changed since the loaded state was saved, one ``key old -> new`` each."""
        self._optimizer, self._schedule = optimizer, schedule
        self._fresh = [
            {key: group[key] for key in (*NUMBERS, "initial_lr") if key in group}
            for group in optimizer.param_groups
        ]
        length = {_LENGTH: steps} if schedule_settings.needs_length else {}
        self._now: dict[str, Any] = {
            **{f"train.optimizer.{key}": getattr(settings, key) for key in NUMBERS},
            **{f"train.schedule.{k}": v for k, v in to_dict(schedule_settings).items()},
            **length,
        }

    def state_dict(self) -> dict[str, Any]:
        """Plain values by the name of the setting."""
        return dict(self._now)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Compare with what the state was saved under, and let what has changed take effect."""
        changed = {
            key: (state[key], now)
            for key, now in self._now.items()
            if key in state and _comparable(state[key]) != _comparable(now)
        }
        self.changes = [f"{key} {was} -> {now}" for key, (was, now) in changed.items()]
        for group, fresh in zip(self._optimizer.param_groups, self._fresh, strict=True):
            for key in NUMBERS:
                if key != "lr" and f"train.optimizer.{key}" in changed and key in fresh:
                    group[key] = fresh[key]
        lr = "train.optimizer.lr" in changed
        if lr or _LENGTH in changed or any(key.startswith("train.schedule.") for key in changed):
            # A rate that is asked for now is not one that an earlier plateau has lowered.
            anew = lr or "train.schedule.name" in changed
            bases = [float(fresh["initial_lr"]) for fresh in self._fresh] if lr else None
            self._schedule.retune(bases, anew=anew)


def _comparable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
