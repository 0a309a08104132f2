"""Spikes: consecutive rows that the guard marked as outliers.

The guard keeps the baseline of the run and marks single rows (``outlier``: 1 for the gradient
norm, 2 for the loss). Whether a mark was one bad batch, damaged weights or a change of the data
is only known some rows later; this module finds and measures the consecutive rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ._window import (
    Mask,
    Rows,
    Window,
    column,
    optimizer,
)

NORM, LOSS = 1, 2
# Less is the last part of a warm-up, or a change that nobody would look at. A guess.
_RISES = 1.1


def far(rows: Rows, bit: int) -> Mask:
    """Rows whose gradient norm (``NORM``) or loss (``LOSS``) was far above its baseline."""
    marks = column(rows, "outlier")
    # Anything else (NaN, a number of a later version) marks nothing.
    known = np.isin(marks, (1, 2, 3))
    return known & ((np.where(known, marks, 0).astype(np.int64) & bit) > 0)


def ends_spike(window: Window) -> Mask:
    """New rows with an ordinary loss right after one far above the baseline."""
    rows = window.rows
    high = far(rows, LOSS)
    ends = np.zeros(len(rows), dtype=np.bool_)
    if high.any():
        seen = np.isfinite(column(rows, "loss"))
        owner = optimizer(rows)
        for opt in np.unique(owner[high]):
            own = np.flatnonzero(seen & (owner == opt))
            ends[own[1:]] = high[own[:-1]] & ~high[own[1:]]
    return ends[len(rows) - window.fresh :]


@dataclass(frozen=True, slots=True)
class Spike:
    """Consecutive losses far above the baseline, up to the row before the judged one."""

    rows: NDArray[np.intp]
    """Their indices in the window."""
    applied: int
    """How many of these steps changed the weights."""
    peak: float
    usual: float
    limit: float
    """Baseline and threshold of the loss when the spike began."""
    before: float
    """The largest absolute loss before it, other spikes included; NaN where there was none."""
    back: bool
    """Whether the judged loss is ordinary by the earlier baseline."""
    as_high: int = -1
    """Row of an earlier spike with a loss at least as high; -1 for none."""

    @property
    def times(self) -> float:
        """Ratio to the largest loss before it; NaN where there was none."""
        return self.peak / self.before if self.before > 0 else math.nan


def spike(window: Window) -> Spike | None:
    """The spike that the judged row ends."""
    own = window.own
    losses = column(window.rows, "loss")[own].astype(np.float64)
    own, losses = own[np.isfinite(losses)], losses[np.isfinite(losses)]
    if not own.size or own[-1] != len(window) - 1:
        return None
    # Where the guard has tried older weights, the loss is theirs, and the row has no mark.
    if np.isnan(column(window.rows, "outlier")[-1]):
        return None
    high = far(window.rows[own], LOSS)
    low = np.flatnonzero(~high[:-1])
    start, stop = int(low[-1]) + 1 if low.size else 0, len(own) - 1
    if high[-1] or start == stop:
        return None
    rows = own[start:stop]
    peak = float(losses[start:stop].max())
    usual, limit = (window.value(name, int(rows[0])) for name in ("loss_baseline", "loss_limit"))
    alike = np.flatnonzero(high[:start] & (losses[:start] >= peak))
    skipped = (column(window.rows, "skipped") > 0) | (column(window.rows, "scaler_skipped") > 0)
    return Spike(
        rows=rows,
        applied=int((~skipped[rows]).sum()),
        peak=peak,
        usual=usual,
        limit=limit,
        before=float(np.abs(losses[:start]).max()) if start else math.nan,
        # Where the threshold has risen, a loss may be ordinary by the new one alone.
        back=not losses[-1] > limit,
        as_high=int(own[alike[-1]]) if alike.size else -1,
    )


def samples(batch: Mapping[str, Any]) -> list[Any]:
    """Dataset indices of a recorded batch; empty where they are not known."""
    indices: object = batch.get("indices")
    return list(cast("list[Any]", indices)) if isinstance(indices, list | tuple) else []


def rate(window: Window) -> str:
    """The learning rate of the judged row for the middle of a sentence; "" where unknown."""
    lr = window.value("lr")
    return f" (now {lr:.3g})" if math.isfinite(lr) else ""


def rate_advice(window: Window, step: int) -> str:
    """What the learning rate asks for by its course up to a step: one that rises is named first."""
    rows = window.rows[window.own]
    rates = column(rows, "lr")
    known = np.flatnonzero(np.isfinite(rates) & (rows["step"] <= step))
    if not known.size:
        return "lower the learning rate"
    first, last = float(rates[known[0]]), float(rates[known[-1]])
    if last < _RISES * first or last < float(rates[known].max()):
        return f"lower the learning rate (now {last:.3g})"
    since = f"{first:.3g} at step {rows['step'][known[0]]}, {last:.3g} at step {step}"
    return (
        f"the learning rate is still rising ({since}): check that its schedule ends there; "
        "if it does, a lower peak or a slower warm-up"
    )
