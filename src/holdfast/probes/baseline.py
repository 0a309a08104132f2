"""Baseline of loss and gradient norm, and outliers from it: decided in the step itself.

Two series are known by their last ``WINDOW`` accepted values: the loss as it is, the gradient
norm by its logarithm. Each has a median and a median absolute deviation (MAD); one wild value,
or thirty, cannot move them far, and a non-finite value never enters. A value is an
outlier when it is above the median by each of

- eight robust standard deviations (six where loss and norm stand out together),
- half as much again as the largest excursion in the window, so that heavy tails and steady
  growth are ordinary where they have been ordinary,
- a ratio that matters: ten times the norm baseline (three together), 1.5 times the loss
  baseline and a hundredth of what it was at the start.

A norm that stands out alone must be ten times that of the step before too: gradients that had
nearly vanished come back by leaps, and skipping those steps would keep the model where it is.

The numbers are guesses checked against the noisy and the spiking scripts of the tests; nothing
here depends on the unit of a loss or the size of a model.

Outliers that follow each other closely are one event. The step of an outlier norm is skipped, and
its norm not learned: ``SKIPS`` times in an event at most, after which the run gets a new
baseline; and in the first ``EVENTS`` events only, unless a later one goes twice as high, because
frequent outliers are normal for this run.

On the host this is ``Baseline``; ``device_baseline`` does the same where nothing may be read.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Mapping
from itertools import repeat
from typing import Any, NamedTuple

WINDOW = 64
SKIPS = 12
EVENTS = 2
# Ordinary steps that end an event, and that make the run forget its events.
APART = 8
FORGOTTEN = 512
HIGHER = 1.0
"""Binary orders by which an event must surpass all before it to be skipped again."""

NORM, LOSS, SKIP = 1, 2, 4
"""Bits of an outlier; the last one says that its step is skipped."""


class Limits(NamedTuple):
    """How far above the median a value must be, by each measure, to be an outlier."""

    deviations: float
    excursion: float
    rise: float


# Norms are binary logarithms: a rise of log2(10) is ten times the baseline.
ALONE = Limits(8.0, 1.5, math.log2(10))
TOGETHER = Limits(6.0, 1.25, math.log2(3))
OF_LOSS = Limits(8.0, 1.5, 0.5)
# Adaptive clipping: the largest norm that is still let through as it is.
CLIP = Limits(3.0, 0.0, 1.0)
# A rise below this share of what the loss was at the start is noise of a converged run.
AT_START = 0.01
# From MAD to a standard deviation, for a normal distribution.
TO_SIGMA = 1.4826


class _Series:
    """The last accepted values of one quantity."""

    def __init__(self, warmup: int) -> None:
        self.values: deque[float] = deque(maxlen=WINDOW)
        self.middle = math.nan
        self.sigma = 0.0
        self.excursion = 0.0
        self._warmup = warmup

    @property
    def ready(self) -> bool:
        return len(self.values) >= self._warmup

    def state(self) -> dict[str, Any]:
        numbers = {"middle": self.middle, "sigma": self.sigma, "excursion": self.excursion}
        return {"values": list(self.values), **numbers}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.values = deque(state["values"], maxlen=WINDOW)
        self.middle, self.sigma = state["middle"], state["sigma"]
        self.excursion = state["excursion"]

    def learn(self) -> None:
        """Work out the middle and the spread from the window."""
        values = sorted(self.values)
        half = (len(values) - 1) // 2
        self.middle = values[half]
        # Without a line of Python for each value: this is done in every eighth step.
        off = sorted(map(abs, map(operator.sub, values, repeat(self.middle))))
        self.sigma = TO_SIGMA * off[half]
        self.excursion = values[-1] - self.middle

    def above(self, limits: Limits, least: float) -> float:
        """Where outliers begin, when they must rise by ``least``."""
        rise = max(limits.deviations * self.sigma, limits.excursion * self.excursion, least)
        return self.middle + rise


# What a baseline knows beside its two series and their limits.
_COUNTERS = ("_age", "_start", "_events", "_in_event", "_since", "_height", "_earlier")
_LIMITS = ("_loss_limit", "_norm_limit", "_together", "_numbers")


def _size(norm: float) -> float:
    return math.log2(norm) if 0.0 < norm < math.inf else math.nan


class Baseline:
    """Baseline of a run, where loss and norm are known on the host.

    Args:
        warmup: accepted values until there is a judgement.
        refresh: medians are worked out again after this many steps, and before any outlier is
            called one.
    """

    def __init__(self, warmup: int, refresh: int = 8) -> None:
        self._warmup = warmup
        self._norms = _Series(warmup)
        self._losses = _Series(warmup)
        self._refresh = refresh
        self._age = refresh
        self._start = 0.0
        self._events = 0
        self._in_event = 0
        self._since = FORGOTTEN
        self._height = 0.0
        self._earlier = 0.0
        self._loss_limit = math.inf
        self._norm_limit = math.inf
        self._together = math.inf
        self._numbers = (math.nan, math.nan, math.nan, math.nan)

    def judge(
        self, loss: float, norm: float, *, loss_counts: bool, norm_counts: bool, may_skip: bool
    ) -> int:
        """Bits of an outlier; ``SKIP`` among them when the step should not be taken.

        Args:
            loss: the loss, not finite when there is none.
            norm: the gradient norm.
            loss_counts: whether the loss helps to call the norm an outlier. Not with several ranks:
                each has a loss of its own, and all must say the same about their one norm.
            norm_counts: whether a norm alone is enough (not when the user clips it anyway).
            may_skip: whether steps may be skipped.
        """
        if self.is_ordinary(loss, norm):
            return 0
        self._age += 1
        self._since += 1
        size = _size(norm)
        found = self._found(loss, size, loss_counts, norm_counts)
        if found:
            self._learn_for(found, loss_counts)
            found = self._found(loss, size, loss_counts, norm_counts)
        if found & NORM and self._surprises(size - self._norms.middle) and may_skip:
            return found | SKIP
        if size == size:
            self._norms.values.append(size)
        if not found & LOSS and -math.inf < loss < math.inf:
            self._losses.values.append(loss)
        return found

    def is_ordinary(self, loss: float, norm: float) -> bool:
        """Whether both are ordinary, as on nearly every step of a healthy run.

        They are learned then; otherwise nothing has happened yet, and ``judge`` must be asked.
        """
        norms = self._norms.values
        if self._age >= self._refresh or len(norms) == self._warmup:
            self._learn()
            self._age = -1
        size = _size(norm)
        if not (size <= self._together and loss <= self._loss_limit and math.isfinite(loss)):
            return False
        self._age += 1
        self._since += 1
        norms.append(size)
        self._losses.values.append(loss)
        return True

    @property
    def numbers(self) -> tuple[float, float, float, float]:
        """Baseline and threshold of the loss, then of the norm."""
        return self._numbers

    @property
    def clip_at(self) -> float:
        """The norm that adaptive clipping lets through."""
        if not self._norms.ready:
            return math.inf
        return 2.0 ** self._norms.above(CLIP, CLIP.rise)

    def state(self) -> dict[str, Any]:
        """All that its next answers depend on, as plain data."""
        known = {name: getattr(self, name) for name in (*_COUNTERS, *_LIMITS)}
        return {**known, "norms": self._norms.state(), "losses": self._losses.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` gave."""
        for name in (*_COUNTERS, *_LIMITS):
            setattr(self, name, state[name])
        self._norms.restore(state["norms"])
        self._losses.restore(state["losses"])

    def learn_anew(self) -> None:
        """Losses have a new level: forget the old one."""
        self._losses.values.clear()
        self._loss_limit = math.inf
        self._learn_losses()

    def _surprises(self, height: float) -> bool:
        """Whether this outlier, which becomes part of an event, is unusual for the run."""
        if self._since > APART:
            self._events = 1 if self._since > FORGOTTEN else self._events + 1
            self._earlier = 0.0 if self._events == 1 else max(self._earlier, self._height)
            self._in_event, self._height = 0, 0.0
        self._since = 0
        self._in_event += 1
        self._height = max(self._height, height)
        new = self._events <= EVENTS or height > self._earlier + HIGHER
        return new and self._in_event <= SKIPS

    def _found(self, loss: float, size: float, loss_counts: bool, norm_counts: bool) -> int:
        found = LOSS if self._loss_limit < loss < math.inf else 0
        helps = found if loss_counts else 0
        if size > self._together and (helps or (norm_counts and self._leaps(size))):
            found |= NORM
        return found

    def _leaps(self, size: float) -> bool:
        return size > self._norm_limit and size > self._norms.values[-1] + ALONE.rise

    def _learn_for(self, found: int, loss_counts: bool) -> None:
        """Work out what an outlier is called one by."""
        if loss_counts:
            self._learn()
            return
        # When norms are worked out must not depend on a loss that other ranks do not see.
        self._learn_losses()
        if found & NORM:
            self._learn_norms()

    def _learn(self) -> None:
        self._age = 0
        self._learn_losses()
        self._learn_norms()

    def _learn_losses(self) -> None:
        losses = self._losses
        is_ordinary = limit = math.nan
        if losses.ready:
            losses.learn()
            if not self._start:
                self._start = abs(losses.middle) + losses.sigma
            least = max(OF_LOSS.rise * abs(losses.middle), AT_START * self._start)
            self._loss_limit = limit = losses.above(OF_LOSS, least)
            is_ordinary = losses.middle
        self._numbers = is_ordinary, limit, self._numbers[2], self._numbers[3]

    def _learn_norms(self) -> None:
        norms = self._norms
        if norms.ready:
            norms.learn()
            self._norm_limit = norms.above(ALONE, ALONE.rise)
            self._together = norms.above(TOGETHER, TOGETHER.rise)
            is_ordinary, limit = 2.0**norms.middle, 2.0**self._norm_limit
            self._numbers = self._numbers[0], self._numbers[1], is_ordinary, limit
