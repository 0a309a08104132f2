"""Statistical errors by drawing the same rows again, with replacement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]

_RESAMPLES, _SEED = 100, 20
_TOGETHER = 2_000_000  # numbers drawn at once


def bootstrap_error(rows: Floats, statistic: Callable[[Floats], Floats]) -> Floats:
    """Standard deviation of a statistic over resamples of the rows; NaN of fewer than two rows.

    The seed is fixed, so that the same table gives the same figure.

    Args:
        rows: along the first axis.
        statistic: of many resamples at once: they are the first axis, rows the second.
    """
    if len(rows) < 2:
        return np.full(np.shape(statistic(rows[None]))[1:], np.nan)
    generator = np.random.default_rng(_SEED)
    some = max(1, _TOGETHER // rows.size)
    found: list[Floats] = []
    for first in range(0, _RESAMPLES, some):
        draws = (min(some, _RESAMPLES - first), len(rows))
        found.append(statistic(rows[generator.integers(len(rows), size=draws)]))
    return np.std(np.concatenate(found), axis=0, ddof=1)
