"""Downsample curves for a page: at most as many points as pixels, extremes kept."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


class DrawnCurve(NamedTuple):
    """A curve as it is drawn: the points, and where these are extremes, the medians."""

    x: Values
    y: Values
    middle: tuple[Values, Values] | None = None


def condense(x: Values, y: Values, columns: int) -> DrawnCurve:
    """The smallest and the largest value of every column of pixels, where they were.

    A curve that fits stays as it is. NaN and infinity are gaps: one stays in each column that
    holds nothing else.

    >>> drawn = condense(np.arange(1e6), np.where(np.arange(1e6) == 5e5, 99.0, 1.0), 100)
    >>> len(drawn.x) <= 200, drawn.y.max(), drawn.middle[1].max()
    (True, np.float64(99.0), np.float64(1.0))
    """
    if len(x) <= 2 * columns:
        return DrawnCurve(x, np.where(np.isfinite(y), y, np.nan))
    span = x[-1] - x[0]
    column = np.minimum((x - x[0]) / (span or 1.0) * columns, columns - 1).astype(np.intp)
    finite = np.isfinite(y)
    rows = np.flatnonzero(finite)
    order = rows[np.lexsort((y[rows], column[rows]))]
    first = np.flatnonzero(np.diff(column[order], prepend=-1))
    end = np.append(first[1:], len(order))[: len(first)]
    gaps = np.searchsorted(column, np.setdiff1d(column[~finite], column[rows]))
    kept = np.unique(np.concatenate([order[first], order[end - 1], gaps]))
    median = order[(first + end - 1) // 2]
    # In the middle of its column: where in it the median was met means nothing.
    centre = x[0] + (column[order[first]] + 0.5) * span / columns
    across = np.concatenate([centre, x[gaps]])
    values = np.concatenate([y[median], np.full(len(gaps), np.nan)])
    sort = np.argsort(across, kind="stable")
    return DrawnCurve(
        x[kept], np.where(finite[kept], y[kept], np.nan), (across[sort], values[sort])
    )  # fmt: skip


def bin_means(x: Values, values: Values, bins: int) -> tuple[Values, Values]:
    """Means over equal stretches of x: their middles, and one line of means per line of values.

    Bins without any measured value are dropped; a line without one in a bin counts zero there.
    """
    low, high = float(x[0]), float(x[-1])
    count = min(bins, len(x))
    place = np.minimum((x - low) / ((high - low) or 1.0) * count, count - 1).astype(np.intp)
    known = np.isfinite(values)
    sums = np.stack(
        [np.bincount(place, np.where(k, v, 0.0), count) for k, v in zip(known, values, strict=True)]
    )
    counts = np.stack([np.bincount(place, k, count) for k in known])
    full = np.flatnonzero(counts.any(axis=0))
    middles = low + (full + 0.5) * (high - low) / count
    return middles, sums[:, full] / np.maximum(counts[:, full], 1)


def spread(x: Values, low: float, high: float, places: int) -> Values:
    """Positions of marks between 0 and 1; of several in one place one is drawn."""
    place = np.round((x - low) / ((high - low) or 1.0) * places)
    return np.unique(np.clip(place, 0, places)) / places
