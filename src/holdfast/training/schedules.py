"""Learning rates over time: one factor for every step, multiplied with each group's own rate.

Warm-up is linear and never at zero, and no kind ever comes to exactly zero: a step without a
rate would be computed for nothing.

    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    >>> schedule = Schedule(optimizer, ScheduleSettings(name="linear", warmup=2), steps=6)
    >>> rates = []
    >>> for _ in range(6):
    ...     optimizer.step()
    ...     rates.append(round(optimizer.param_groups[0]["lr"], 4))
    ...     schedule.step()
    >>> rates
    [0.05, 0.1, 0.1, 0.075, 0.05, 0.025]
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..config import Section, bounded
from ..errors import CheckpointError, SettingsError

# What a plateau never goes below: a rate of nothing would train nothing.
_LOWEST = 1e-8


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleSettings(Section):
    """How the learning rate changes; every share is one of the optimizer's rate.

    What is given in epochs is converted with the steps of one epoch.
    """

    name: Literal["constant", "linear", "cosine", "restarts", "onecycle", "plateau"] = "constant"
    warmup: int = bounded(0, 0)  # steps
    warmup_epochs: float = bounded(0.0, 0.0)  # added to warmup
    warmup_from: float = bounded(0.0, 0.0, 1.0)  # share of the first step; 0: one part of warmup
    floor: float = bounded(0.0, 0.0, 1.0)  # share that is left at the end
    lowest: float | None = bounded(None, 0.0)  # rate that no kind but onecycle goes below
    period: int | None = bounded(None, 1)  # restarts: steps of the first period
    period_epochs: float | None = bounded(None, 0.0, above=True)  # instead of period
    mult: float = bounded(2.0, 1.0)  # restarts: each period is so many times the one before
    factor: float = bounded(0.5, 0.0, 1.0, above=True)  # plateau: what the rate is multiplied with
    patience: int = bounded(10, 0)  # plateau: validations without a gain that are borne
    threshold: float = bounded(1e-4, 0.0)  # plateau: share of the best value that is a gain
    max_lr: float | None = bounded(None, 0.0, above=True)  # onecycle: instead of the optimizer's
    pct_start: float = bounded(0.3, 0.0, 1.0)  # onecycle: share of the run that the rate rises
    div: float = bounded(25.0, 1.0)  # onecycle: it begins with a share of 1/div
    final_div: float = bounded(1e4, 1.0)  # onecycle: and ends with 1/final_div of that

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.period is not None and self.period_epochs is not None:
            raise ValueError("period and period_epochs are both given; remove one")

    @property
    def needs_length(self) -> bool:
        """Whether the number of steps of the run shapes it."""
        return self.name in ("linear", "cosine", "onecycle")


def in_steps(settings: ScheduleSettings, epoch: int | None) -> ScheduleSettings:
    """The same schedule with everything in steps; ``epoch`` is the steps of one, None if unknown.

    >>> found = in_steps(ScheduleSettings(warmup=5, warmup_epochs=0.5), epoch=100)
    >>> found.warmup, found.warmup_epochs
    (55, 0.0)
    """
    for name, instead in (("warmup_epochs", "warmup"), ("period_epochs", "period")):
        if getattr(settings, name) and epoch is None:
            raise SettingsError(
                f"schedule.{name} needs the length of an epoch, and the data has none; "
                f"use schedule.{instead}, a number of steps"
            )
    steps = epoch or 0
    period = settings.period
    if settings.period_epochs is not None:
        period = max(1, round(settings.period_epochs * steps))
    return dataclasses.replace(
        settings,
        warmup=settings.warmup + round(settings.warmup_epochs * steps),
        warmup_epochs=0.0,
        period=period,
        period_epochs=None,
    )


def check(settings: ScheduleSettings, steps: int | None) -> None:
    """Raise ``SettingsError`` where the schedule cannot run; ``steps`` is None if unknown."""
    if settings.needs_length and steps is None:
        raise SettingsError(
            f"schedule {settings.name!r} needs the number of steps, and the data has no length; "
            "set steps, or choose constant, restarts or plateau"
        )
    if settings.name == "restarts" and settings.period is None:
        raise SettingsError(
            "schedule 'restarts' needs the length of its first period; set period to a number of "
            "steps, or period_epochs"
        )


class Schedule:
    """Sets the learning rate of every group, at once and after every step.

    Groups with rates of their own keep their ratios. A rate that somebody else changes between
    two steps, as a rollback does, stays changed by that ratio from then on.

    Args:
        optimizer: whose groups are set; what they have now, or ``initial_lr`` if they have that,
            is what the factor is multiplied with.
        settings: which schedule.
        steps: optimizer steps of the whole run, None if unknown. A run that goes on for longer
            keeps the rate of its last step.
        epoch: optimizer steps of one epoch, None if unknown.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        settings: ScheduleSettings,
        steps: int | None,
        epoch: int | None = None,
    ) -> None:
        settings = in_steps(settings, epoch)
        check(settings, steps)
        self._optimizer = optimizer
        self.settings = settings
        """Without anything in epochs."""
        self._shape = _shape(settings, steps)
        self._count = 0
        self._level = 1.0
        self._best: float | None = None
        self._bad = 0
        groups = optimizer.param_groups
        self._bases = [float(group.get("initial_lr", group["lr"])) for group in groups]
        self._peak = self._peak_share()
        self._set = [0.0] * len(groups)
        self._versions = [0] * len(groups)
        self._write()

    def _factor(self, base: float) -> float:
        """What a group's own rate is multiplied with for the step that comes next."""
        settings, after = self.settings, self._count - self.settings.warmup
        lowest = (settings.lowest or 0.0) / base if base else 0.0
        floor = min(1.0, max(settings.floor, lowest))
        shape = self._shape(max(after, 0), floor)
        if settings.name == "plateau":
            shape = max(self._level, floor)
        return self._warm() * self._peak * shape

    def _warm(self) -> float:
        warmup, start = self.settings.warmup, self.settings.warmup_from
        if self._count >= warmup:
            return 1.0
        if not start:
            return (self._count + 1) / warmup
        return start + (1.0 - start) * self._count / max(1, warmup - 1)

    def _peak_share(self) -> float:
        """What one cycle rises to: the fastest group to ``max_lr``, the others in proportion."""
        most = self.settings.max_lr
        if self.settings.name != "onecycle" or most is None:
            return 1.0
        return most / max(self._bases)

    def step(self) -> None:
        """A step of the optimizer is over: set the rates of the next."""
        self._notice()
        self._count += 1
        self._write()

    def retune(self, bases: Sequence[float] | None = None, *, anew: bool = False) -> None:
        """Set the rates of the next step by the settings, not by a state that was loaded.

        Args:
            bases: what the factor is multiplied with from here on; as it was by default.
            anew: forget what a plateau has lowered.
        """
        if bases is not None:
            self._bases = list(bases)
            self._peak = self._peak_share()
        if anew:
            self._level, self._bad = 1.0, 0
        self._write()

    def validated(self, value: float) -> None:
        """A validation is over; with a plateau, lower the rate if ``value`` no longer falls."""
        if self.settings.name != "plateau":
            return
        best = self._best
        gain = best is None or value < best - self.settings.threshold * abs(best)
        if gain and math.isfinite(value):
            self._best, self._bad = value, 0
            return
        self._bad += 1
        if self._bad <= self.settings.patience:
            return
        self._bad = 0
        self._notice()
        lowest = max(self.settings.floor, _LOWEST)
        self._level = max(self._level * self.settings.factor, lowest)
        self._write()

    def state_dict(self) -> dict[str, Any]:
        """Where the schedule is, in plain numbers."""
        self._notice()
        return {
            "count": self._count,
            "bases": list(self._bases),
            "rates": list(self._set),
            "level": self._level,
            "best": self._best,
            "bad": self._bad,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` gave; the groups get the rates they had then."""
        if len(state["bases"]) != len(self._bases):
            raise CheckpointError(
                f"the saved schedule has {len(state['bases'])} parameter groups, the optimizer has "
                f"{len(self._bases)}; make the optimizer as it was then"
            )
        self._count, self._level = int(state["count"]), float(state["level"])
        self._best, self._bad = state["best"], int(state["bad"])
        self._bases = [float(base) for base in state["bases"]]
        self._write([float(rate) for rate in state["rates"]])

    @torch.no_grad()
    def _write(self, rates: list[float] | None = None) -> None:
        self._set = rates or [base * self._factor(base) for base in self._bases]
        for i, group in enumerate(self._optimizer.param_groups):
            group["initial_lr"] = self._bases[i]
            if isinstance(group["lr"], Tensor):  # a captured graph reads that very tensor
                group["lr"].fill_(self._set[i])
                self._versions[i] = group["lr"]._version
            else:
                group["lr"] = self._set[i]

    def _notice(self) -> None:
        """Take over what somebody else has done to the rates since they were set."""
        for i, group in enumerate(self._optimizer.param_groups):
            rate = group["lr"]
            if isinstance(rate, Tensor):
                # Reading it would wait for the device, so it is read only if it was written to.
                if rate._version == self._versions[i]:
                    continue
                self._versions[i] = rate._version
                rate = float(rate)
            former = self._set[i]
            if rate != former:
                # From nothing there is no ratio: the rate is what the factor should give now.
                base = self._bases[i]
                base = base * (rate / former) if former else rate / self._factor(base)
                self._bases[i], self._set[i] = base, rate


def _shape(settings: ScheduleSettings, steps: int | None) -> Callable[[int, float], float]:
    """The factor by the steps since the warm-up and the share that is left at the end."""
    # The end is after the last step, so that the last step still learns something.
    span = max(1, (steps or 0) - settings.warmup)
    match settings.name:
        case "linear":
            return lambda n, floor: 1.0 - (1.0 - floor) * min(n, span - 1) / span
        case "cosine":
            return lambda n, floor: _cosine(1.0, floor, min(n, span - 1) / span)
        case "restarts":
            assert settings.period is not None  # checked
            first, mult = settings.period, settings.mult
            return lambda n, floor: _cosine(1.0, floor, _through(n, first, mult))
        case "onecycle":
            return lambda n, floor: _onecycle(min(n, span - 1), span, settings)
        case _:
            return lambda n, floor: 1.0


def _cosine(start: float, end: float, share: float) -> float:
    # Not (1 + cos) / 2, which is exactly zero well before the end of a very long run.
    return end + (start - end) * math.cos(math.pi / 2 * share) ** 2


def _through(n: int, first: int, mult: float) -> float:
    """How far step ``n`` is through its period, from 0 to below 1."""
    if mult == 1.0:
        return n % first / first

    def begin(k: int) -> float:
        return first * (mult**k - 1.0) / (mult - 1.0)

    k = int(math.log(n * (mult - 1.0) / first + 1.0, mult))
    if begin(k + 1) <= n:  # the logarithm may be a bit too low where a period begins
        k += 1
    return (n - begin(k)) / (first * mult**k)


def _onecycle(n: int, span: int, settings: ScheduleSettings) -> float:
    low = 1.0 / settings.div
    end = max(settings.floor, low / settings.final_div)
    top, last = max(0.0, settings.pct_start * span - 1.0), span - 1.0
    if n <= top and top > 0:
        return _cosine(low, 1.0, n / top)
    return _cosine(1.0, end, (n - top) / (last - top)) if last > top else 1.0
