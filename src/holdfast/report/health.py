"""Health line every N steps, on request: loss and gradient norm against their baselines.

step 150  loss 2.31 (baseline 2.4)  grad norm 1.2 healthy (baseline 1.1)  lr 0.001  12.3 steps/s
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..run import Rows
from . import words
from .columns import column

# Labels until the run has a baseline: ordinary values for clipped transformers, and no finding by
# themselves. From then on labels follow the baseline.
_LOW, _HIGH, _CRITICAL = 0.5, 5.0, 10.0
# Far below the baseline; a guess.
_SMALL = 0.1


@dataclass(slots=True)
class _Course:
    """State kept for one optimizer of one process."""

    step: int
    time: float
    skipped: int = 0


class HealthRows:
    """Selects the rows to print and formats them.

    Args:
        every: steps between two lines; 0 for none.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._courses: dict[tuple[str, int], _Course] = {}

    def lines(self, lane: str, rows: Rows | None) -> Iterator[str]:
        """The lines due with these rows, which must not be shown twice to this object."""
        if not self._every or rows is None or not len(rows):
            return
        skipped = column(rows, "skipped") > 0
        numbers = np.nan_to_num(column(rows, "opt")).astype(np.int64)
        for i in range(len(rows)):
            step, time = int(rows["step"][i]), float(rows["time"][i])
            key = lane, int(numbers[i])
            run_curves = self._courses.setdefault(key, _Course(step, time))
            run_curves.skipped += bool(skipped[i])
            due = step // self._every > run_curves.step // self._every
            # A skipped step says little; among many of them one is better than none.
            if due and not (skipped[i] and step % self._every < self._every // 2):
                yield self._line(rows[i : i + 1], key[1], run_curves)
                run_curves.step, run_curves.time = step, time

    def _line(self, row: Rows, optimizer: int, run_curves: _Course) -> str:
        values = {name: float(column(row, name)[0]) for name in _COLUMNS}
        step, seconds = int(row["step"][0]), float(row["time"][0]) - run_curves.time
        pace = (step - run_curves.step) / seconds if seconds > 0 else math.nan
        norm, lr = values["grad_norm"], values["lr"]
        known = not _missing(values, "grad_norm", "grad_bad")
        word = label(norm, usual=values["norm_baseline"], limit=values["norm_limit"])
        size = f"{words.figure(norm)} {word}" if known else "not recorded"
        loss = words.figure(values["loss"])
        loss = "not recorded" if _missing(values, "loss", "loss_bad") else loss
        parts = [
            f"step {step}",
            f"optimizer {optimizer}" if optimizer else "",
            f"loss {loss}{_usual(values['loss_baseline'])}",
            f"grad norm {size}{_usual(values['norm_baseline'])}",
            "" if math.isnan(lr) else f"lr {words.figure(lr)}",
            "" if math.isnan(pace) else f"{pace:.3g} steps/s",
            f"{run_curves.skipped} skipped" if run_curves.skipped else "",
        ]
        return "  ".join(filter(None, parts)).replace(words.NBSP, " ")


_COLUMNS = (
    "loss",
    "loss_bad",
    "loss_baseline",
    "grad_norm",
    "grad_bad",
    "norm_baseline",
    "norm_limit",
    "lr",
)


def label(norm: float, usual: float, limit: float) -> str:
    """Label of a gradient norm: against the baseline once there is one.

    >>> label(7.0, usual=math.nan, limit=math.nan), label(7.0, usual=6.5, limit=20.0)
    ('high', 'healthy')
    """
    if not math.isfinite(norm):
        return "non-finite"
    if math.isfinite(usual) and math.isfinite(limit):
        low, high, critical = usual * _SMALL, (usual + limit) / 2, limit
    else:
        low, high, critical = _LOW, _HIGH, _CRITICAL
    if norm > critical:
        return "critical"
    return "high" if norm > high else "low" if norm < low else "healthy"


def _missing(values: Mapping[str, float], name: str, flag: str) -> bool:
    """Whether a number was not recorded: one that was NaN has its flag set."""
    return math.isnan(values[name]) and not values[flag] > 0


def _usual(value: float) -> str:
    return f" (baseline {words.figure(value)})" if math.isfinite(value) else ""
