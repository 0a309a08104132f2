"""Is this run in trouble that skipping and clipping do not end? Reads steps as they become known.

A loss that stays far above the usual may mean that the weights are damaged, or that the data has
changed; from here both look alike. ``Trouble`` says when it is time to find out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..probes.baseline import LOSS, SKIPS
from ..probes.step_record import Verdict

# Slow growth is looked for this often, and must reach this much to be taken for divergence: a
# loss many times what the run began with and norms far above their lowest. Reinforcement
# learning and adversaries raise both by one order and are fine. A guess.
LOOK = 16
_LOSS_GROWTH = 100.0
_NORM_GROWTH = 30.0


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


@dataclass(slots=True)
class Trouble:
    """The recent fate of one optimizer.

    Args:
        patience: losses in a row far above the usual before weights are suspected.
    """

    patience: int
    usual: float = math.nan
    limit: float = math.nan
    tried: bool = False
    """Whether the present trouble has been looked into."""
    first: int = -1
    """The step at which the present trouble began, -1 for none."""
    _high: int = 0
    _left_out: int = 0
    _start: float = math.nan
    _lowest: float = math.inf
    _lowest_norm: float = math.inf
    _wandering: bool = field(default=False)

    def saw(self, verdict: Verdict) -> Suspicion | None:
        """A step is known; a suspicion when it is time to act."""
        row = verdict.row
        if row["param_bad"] > 0 and not verdict.told_to:
            return self._suspect("NUM003", "weights", verdict)
        if verdict.bad or verdict.wild:
            self._left_out += 1
        elif verdict.outlier & LOSS:
            self._high += 1
        else:
            self.calm()
            self.usual, self.limit = row["loss_usual"], row["loss_limit"]
            return self._diverging(verdict) if verdict.step % LOOK == 0 else None
        if self.first < 0:
            self.first = verdict.step
        if self.tried or (self._high < self.patience and self._left_out < SKIPS):
            return None
        return self._suspect("OPT001", "nonfinite" if verdict.bad else "loss", verdict)

    @property
    def lasting(self) -> bool:
        """Whether the loss has been up for so long that this is how things are now."""
        return self._high >= 4 * self.patience

    def calm(self) -> None:
        """Nothing is wrong at present."""
        self._high = self._left_out = 0
        self.first = -1
        self.tried = False

    def new_level(self) -> None:
        """The data has changed: growth is measured from here."""
        self.calm()
        self._start, self._lowest, self._lowest_norm = math.nan, math.inf, math.inf

    def _diverging(self, verdict: Verdict) -> Suspicion | None:
        loss, norm = self.usual, verdict.row["norm_usual"]
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return None
        if math.isnan(self._start):
            self._start = abs(loss)
        self._lowest = min(self._lowest, loss)
        self._lowest_norm = min(self._lowest_norm, norm)
        grown = loss - self._lowest > _LOSS_GROWTH * self._start
        if not grown or norm < _NORM_GROWTH * self._lowest_norm:
            self._wandering = False
            return None
        if self._wandering:
            return None
        self._wandering = True
        return self._suspect("OPT003", "loss", verdict)

    def _suspect(self, code: str, why: str, verdict: Verdict) -> Suspicion:
        self.tried = True
        first = self.first if self.first >= 0 else verdict.step
        usual = self._lowest if code == "OPT003" else self.usual
        limit = usual + 0.5 * abs(usual) if code == "OPT003" else self.limit
        loss = verdict.row["loss"]
        return Suspicion(code, why, verdict.step, first, loss, usual, limit)
