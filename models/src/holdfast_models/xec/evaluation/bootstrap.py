"""Statistical errors by drawing the same events again, with replacement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["bootstrap_error"]

Floats = NDArray[Any]

_RESAMPLES, _SEED = 100, 20


def bootstrap_error(
    rows: Floats, statistic: Callable[[Floats], Floats | float], *, resamples: int = _RESAMPLES
) -> Floats:
    """Standard deviation of a statistic over resamples of the rows; NaN of fewer than two rows.

    The seed is fixed, so that the same table gives the same figure.
    """
    if len(rows) < 2:
        return np.full(np.shape(statistic(rows)), np.nan)
    generator = np.random.default_rng(_SEED)
    found = [
        statistic(rows[generator.integers(len(rows), size=len(rows))]) for _ in range(resamples)
    ]
    return np.std(np.asarray(found), axis=0, ddof=1)
