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
    """How the learning rate changes; every share is one of the optimizer's rate."""

    name: Literal["constant", "linear", "cosine", "restarts", "onecycle", "plateau"] = "constant"
    warmup: int = bounded(0, 0)  # steps
    floor: float = bounded(0.0, 0.0, 1.0)  # share that is left at the end
    period: int | None = bounded(None, 1)  # restarts: steps of the first period
    mult: float = bounded(2.0, 1.0)  # restarts: each period is so many times the one before
    factor: float = bounded(0.5, 0.0, 1.0, above=True)  # plateau: what the rate is multiplied with
    patience: int = bounded(10, 0)  # plateau: validations without a gain that are borne
    threshold: float = bounded(1e-4, 0.0)  # plateau: share of the best value that is a gain
    pct_start: float = bounded(0.3, 0.0, 1.0)  # onecycle: share of the run that the rate rises
    div: float = bounded(25.0, 1.0)  # onecycle: it begins with a share of 1/div
    final_div: float = bounded(1e4, 1.0)  # onecycle: and ends with 1/final_div of that

    @property
    def needs_length(self) -> bool:
        """Whether the number of steps of the run shapes it."""
        return self.name in ("linear", "cosine", "onecycle")


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
            "steps"
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
    """

    def __init__(self, optimizer: Optimizer, settings: ScheduleSettings, steps: int | None) -> None:
        check(settings, steps)
        self._optimizer = optimizer
        self._settings = settings
        self._shape = _shape(settings, steps)
        self._count = 0
        self._level = 1.0
        self._best: float | None = None
        self._bad = 0
        groups = optimizer.param_groups
        self._bases = [float(group.get("initial_lr", group["lr"])) for group in groups]
        self._set = [0.0] * len(groups)
        self._versions = [0] * len(groups)
        self._write()

    @property
    def factor(self) -> float:
        """What the rates are multiplied with for the step that comes next."""
        warmup, after = self._settings.warmup, self._count - self._settings.warmup
        warm = (self._count + 1) / warmup if after < 0 else 1.0
        return warm * self._level * self._shape(max(after, 0))

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
        if anew:
            self._level, self._bad = 1.0, 0
        self._write()

    def validated(self, value: float) -> None:
        """A validation is over; with a plateau, lower the rate if ``value`` no longer falls."""
        if self._settings.name != "plateau":
            return
        best = self._best
        gain = best is None or value < best - self._settings.threshold * abs(best)
        if gain and math.isfinite(value):
            self._best, self._bad = value, 0
            return
        self._bad += 1
        if self._bad <= self._settings.patience:
            return
        self._bad = 0
        self._notice()
        lowest = max(self._settings.floor, _LOWEST)
        self._level = max(self._level * self._settings.factor, lowest)
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
        factor = self.factor
        self._set = rates or [base * factor for base in self._bases]
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
                base = self._bases[i] * (rate / former) if former else rate / self.factor
                self._bases[i], self._set[i] = base, rate


def _shape(settings: ScheduleSettings, steps: int | None) -> Callable[[int], float]:
    """The factor as a function of the steps since the warm-up."""
    floor = settings.floor
    # The end is after the last step, so that the last step still learns something.
    span = max(1, (steps or 0) - settings.warmup)
    match settings.name:
        case "linear":
            return lambda n: 1.0 - (1.0 - floor) * min(n, span - 1) / span
        case "cosine":
            return lambda n: _cosine(1.0, floor, min(n, span - 1) / span)
        case "restarts":
            assert settings.period is not None  # checked
            first, mult = settings.period, settings.mult
            return lambda n: _cosine(1.0, floor, _through(n, first, mult))
        case "onecycle":
            return lambda n: _onecycle(min(n, span - 1), span, settings)
        case _:
            return lambda n: 1.0


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
