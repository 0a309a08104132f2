"""Columns of a table, and the rows of one optimizer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..run import Rows


def column(rows: Rows, name: str) -> NDArray[np.float32]:
    """A column of a table; NaN where the table does not have it."""
    if name in (rows.dtype.names or ()):
        return rows[name]
    return np.full(len(rows), np.nan, dtype=np.float32)


def first_optimizer(rows: Rows) -> NDArray[np.bool_]:
    """Rows of the first optimizer: each step is timed once."""
    numbers = column(rows, "opt")
    known = numbers[~np.isnan(numbers)]
    return numbers == known.min() if known.size else np.ones(len(rows), dtype=np.bool_)


def of_first_optimizer(rows: Rows) -> Rows:
    """Those rows; the same array where there is one optimizer, as a copy doubles the memory."""
    own = first_optimizer(rows)
    return rows if own.all() else rows[own]
