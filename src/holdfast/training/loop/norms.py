"""How large gradients were before clipping, over an epoch and a run; what that says of the clip.

Made from the rows the guard has written: their numbers are on the host already.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from ...records.trainer import GradientNormTotals
from .step_numbers import figure, percent

# Bins to a factor of two: a percentile is exact to 0.6 %, however many steps there were.
_BINS = 64
# A clip that cuts this share of the steps sets the length of the usual step.
_USUAL = 0.5
# A largest norm so many times the 99th percentile is an outlier that a clip is made for; a guess.
_OUTLIER = 3.0


class Distribution:
    """Positive numbers in bins of equal ratio: bounded memory for any number of them.

    >>> seen = Distribution()
    >>> seen.add([1.0, 2.0, 4.0, math.nan])
    >>> seen.count, seen.largest, round(seen.percentile(50), 1)
    (3, 4.0, 2.0)
    """

    def __init__(self) -> None:
        self.count = 0
        self.largest = 0.0
        self._bins: Counter[int] = Counter()

    def add(self, values: Iterable[float]) -> None:
        """Count these; what is not finite, or not above zero, is skipped."""
        given = np.fromiter(values, dtype=np.float64)
        known = given[(given > 0) & (given < math.inf)]
        if len(known):
            self.count += len(known)
            self.largest = max(self.largest, float(known.max()))
            self._bins.update(np.floor(_BINS * np.log2(known)).astype(np.int64).tolist())

    def percentile(self, share: float) -> float:
        """The number below which so many percent lie; NaN where there are none."""
        left = math.ceil(self.count * share / 100)
        for number in sorted(self._bins):
            left -= self._bins[number]
            if left <= 0:
                return min(self.largest, 2 ** ((number + 0.5) / _BINS))
        return math.nan


class GradientNorms:
    """Norms before clipping, and how many steps were clipped.

    Args:
        clip: the largest norm that is let through; None: any.
    """

    def __init__(self, clip: float | None) -> None:
        self._clip = clip
        self._norms = Distribution()
        self._taken = self._clipped = 0

    def add(self, rows: Iterable[Mapping[str, float]]) -> None:
        """Count the steps of these rows."""
        rows = list(rows)
        self._norms.add(row["grad_norm"] for row in rows)
        factors = [row["clip"] for row in rows if not row["skipped"]]
        self._taken += sum(map(math.isfinite, factors))
        self._clipped += sum(factor < 1 for factor in factors)

    @property
    def clipped(self) -> float:
        """Share of the steps taken that were clipped."""
        return self._clipped / self._taken if self._taken else 0.0

    @property
    def largest(self) -> float:
        """The largest norm; NaN without steps."""
        return self._norms.largest if self._norms.count else math.nan

    def totals(self) -> GradientNormTotals | None:
        """Everything as numbers, for the record; None without steps."""
        if not self._norms.count:
            return None
        return GradientNormTotals(
            steps=self._norms.count,
            grad_norm_max=self._norms.largest,
            p50=self._norms.percentile(50),
            p90=self._norms.percentile(90),
            p99=self._norms.percentile(99),
            clip=self._clip,
            clipped=self.clipped,
            line=self.line(),
            advice=self.advice(),
        )

    def line(self) -> str:
        """The same for people, in one clause; empty without steps."""
        if not self._norms.count:
            return ""
        half, most = self._norms.percentile(50), self._norms.percentile(99)
        reported = (
            f"norm {figure(half)} (99 % {figure(most)}, largest {figure(self._norms.largest)})"
        )
        return reported if self._clip is None else f"{reported}, {percent(self.clipped)} clipped"

    def advice(self) -> str:
        """What the norms say about the clip; empty where it does what a clip is for."""
        if not self._norms.count:
            return ""
        half, most = self._norms.percentile(50), self._norms.percentile(99)
        at = f"train.clip={_rounded_up(most)} (the 99th percentile)"
        if self._clip is not None and self.clipped >= _USUAL:
            return (
                f"train.clip={self._clip:g} cuts {percent(self.clipped)} of the steps, whose norm "
                f"is {figure(half)} as a rule: it sets the length of every step, as another "
                f"learning rate would; {at} cuts outliers only"
            )
        if self._clip is None and self._norms.largest > _OUTLIER * most:
            return (
                f"nothing is clipped, and the largest norm is {self._norms.largest / half:.0f} "
                f"times the median; {at} cuts outliers only"
            )
        return ""


def _rounded_up(value: float) -> str:
    """With two digits, never less than the value.

    >>> _rounded_up(22.4), _rounded_up(0.0301), _rounded_up(1234.0)
    ('23', '0.031', '1300')
    """
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / unit - 1e-9) * unit:.6g}"
