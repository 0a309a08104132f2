"""Is this run in trouble that skipping and clipping do not end? The code behind a rollback.

The training process judges each row with it as soon as the row is known, because a rollback must
happen at an exact step; the detectors of spikes and divergence use the same functions over the
recorded rows. A loss that stays far above its baseline may mean that the weights are damaged, or
that the data has changed; from here both look alike. ``DamageWatch`` says when it is time to try
old weights on new data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

LOOK = 16
"""Slow growth is looked for on one step in this many."""
LOSS_GROWTH = 100.0
NORM_GROWTH = 30.0
"""A loss so many times what the run began with, and norms so many times their lowest, are a
divergence: reinforcement learning and adversaries raise both by one order and are fine. A guess,
checked against the noisy scripts of the corpus."""
LOSS = 2
"""The bit of the column ``outlier`` that stands for the loss."""

Row = Mapping[str, float]


def far_up(row: Row) -> bool:
    """Whether the loss of a row was far above its baseline."""
    marks = row["outlier"]
    return marks == marks and bool(int(marks) & LOSS)


def wandered(loss: float, lowest: float, start: float, norm: float, lowest_norm: float) -> bool:
    """Whether loss and norm have grown so far that the run is diverging, by whatever path."""
    return loss - lowest > LOSS_GROWTH * start > 0 and norm >= NORM_GROWTH * lowest_norm


@dataclass(slots=True)
class Suspicion:
    """A reason to go back: which code, and what the loss was and had been."""

    code: str
    why: str
    step: int
    first: int
    loss: float
    usual: float
    limit: float
    cause: str = ""
    """What made the steps non-finite, where that is the reason."""


@dataclass(slots=True)
class DamageWatch:
    """Judges the rows of one optimizer as they become known.

    Args:
        patience: losses in a row far above the baseline before weights are suspected.
        skips: skipped steps in a row that say the same.
    """

    patience: int
    skips: int
    usual: float = math.nan
    limit: float = math.nan
    tried: bool = False
    """Whether the present trouble has been looked into."""
    first: int = -1
    """The step at which the present trouble began, -1 for none."""
    in_vain: dict[str, int] = field(default_factory=dict[str, int])
    """Causes that older weights had too, and the last bad step since: they are not tried again."""
    _high: int = 0
    _left_out: int = 0
    _start: float = math.nan
    _lowest: float = math.inf
    _lowest_norm: float = math.inf
    _wandering: bool = field(default=False)

    def saw(
        self, step: int, row: Row, *, bad: bool, skipped: bool, ordered: bool = False
    ) -> Suspicion | None:
        """Judge a row; a suspicion when it is time to act.

        Args:
            step: of the row.
            row: its columns by name.
            bad: a number of the step is not finite.
            skipped: the step was skipped.
            ordered: it was skipped because somebody said so: its weights say nothing.
        """
        if row["param_bad"] > 0 and not ordered:
            return self._suspect("NUM003", "weights", step, row)
        if skipped:
            self._left_out += 1
        elif far_up(row):
            self._high += 1
        else:
            self.settle()
            self.usual, self.limit = row["loss_baseline"], row["loss_limit"]
            return self._diverging(step, row) if step % LOOK == 0 else None
        if self.first < 0:
            self.first = step
        if self.tried or (self._high < self.patience and self._left_out < self.skips):
            return None
        return self._suspect("OPT001", "nonfinite" if bad else "loss", step, row)

    @property
    def lasting(self) -> bool:
        """Whether the loss has been up for so long that this is how things are now."""
        return self._high >= 4 * self.patience

    def settle(self) -> None:
        """Nothing is wrong at present."""
        self._high = self._left_out = 0
        self.first = -1
        self.tried = False

    def new_level(self) -> None:
        """The data has changed: growth is measured from here."""
        self.settle()
        self._start, self._lowest, self._lowest_norm = math.nan, math.inf, math.inf

    def _diverging(self, step: int, row: Row) -> Suspicion | None:
        loss, norm = self.usual, row["norm_baseline"]
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return None
        if math.isnan(self._start):
            self._start = abs(loss)
        self._lowest = min(self._lowest, loss)
        self._lowest_norm = min(self._lowest_norm, norm)
        if not wandered(loss, self._lowest, self._start, norm, self._lowest_norm):
            self._wandering = False
            return None
        if self._wandering:
            return None
        self._wandering = True
        return self._suspect("OPT003", "loss", step, row)

    def _suspect(self, code: str, why: str, step: int, row: Row) -> Suspicion:
        self.tried = True
        first = self.first if self.first >= 0 else step
        usual, limit = self.usual, self.limit
        if code == "OPT003":
            usual, limit = self._lowest, self._lowest + 0.5 * abs(self._lowest)
        elif math.isnan(usual):  # the last quiet step was before there was a baseline
            usual, limit = row["loss_baseline"], row["loss_limit"]
        return Suspicion(code, why, step, first, row["loss"], usual, limit)
