"""Which rows of an old segment are worth keeping when the record must shrink.

Half of the ordinary rows go; rows around incidents stay. So a curve keeps its shape at a
coarser grain and the moment something broke keeps every row, however long the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np

from holdfast.run.table import Rows, Segment, read_rows

INCIDENTS = (
    "loss_bad", "grad_bad", "skipped", "scaler_skipped", "param_bad", "buffer_bad", "input_bad",
)  # fmt: skip
"""Columns that are above zero on a row where something went wrong."""

REACH = 8
"""Rows kept on each side of an incident: 16 neighbours in all."""

Indices = np.ndarray[Any, np.dtype[np.intp]]


# A table that was written by holdfast stays below the first, see ``writer``; one that is larger is
# thinned as it would have been, to at most about the second.
_LARGE, _ENOUGH = 96 << 20, 32 << 20
_PIECE = 16384


def read_within(file: BinaryIO, segment: Segment, first: int, stop: int) -> Rows:
    """Rows of an open table file; of one that is too large for the memory those worth keeping."""
    stop = min(stop, segment.rows)
    size = (stop - first) * segment.declaration.dtype.itemsize
    if size <= _LARGE:
        return read_rows(file, segment, first, stop)
    halvings = math.ceil(math.log2(size / _ENOUGH))
    pieces: list[Rows] = []
    for start in range(first, stop, _PIECE):
        rows = read_rows(file, segment, start, min(start + _PIECE, stop))
        for _ in range(halvings):
            rows = rows[kept_rows(rows)]
        pieces.append(rows)
    return np.concatenate(pieces)


def kept_rows(rows: Rows) -> Indices:
    """Indices of the rows to keep: at most 5/8 of them, half where nothing went wrong.

    Protected are, in this order and up to a quarter of the rows: the first row of each
    incident, the other rows of incidents, their neighbours. Where a group does not fit, it
    is sampled evenly. Of all other rows every second one stays, the first among them.
    """
    count = len(rows)
    bad = np.zeros(count, bool)
    for name in INCIDENTS:
        if name in (rows.dtype.names or ()):
            bad |= rows[name] > 0
    first = bad.copy()
    first[1:] &= ~bad[:-1]
    sums = np.concatenate([[0], np.cumsum(bad)])
    place = np.arange(count)
    near = sums[np.minimum(place + REACH + 1, count)] > sums[np.maximum(place - REACH, 0)]
    room = count // 4
    protected = np.zeros(count, bool)
    for group in (first, bad, near):
        wanted = np.flatnonzero(group & ~protected)
        if len(wanted) > room:
            wanted = wanted[np.linspace(0, len(wanted) - 1, room).astype(np.intp)]
        protected[wanted] = True
        room -= len(wanted)
    protected[np.flatnonzero(~protected)[::2]] = True
    return np.flatnonzero(protected)


def choose(sealed: Sequence[Segment]) -> Sequence[Segment]:
    """The segments to thin into one: the oldest alike neighbours of the finest stride.

    Without two such neighbours (their columns differ) it is the oldest single segment of
    the finest stride; nothing when no segment has two rows left.
    """
    pairs = [
        (old, new)
        for old, new in pairwise(sealed)
        if old.declaration == new.declaration and old.stride == new.stride
    ]
    if pairs:
        return min(pairs, key=lambda pair: pair[0].stride)
    singles = [segment for segment in sealed if segment.rows > 1]
    return [min(singles, key=lambda segment: segment.stride)] if singles else []
