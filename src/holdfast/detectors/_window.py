"""Input of a detector: recent rows of one lane with their events and batches.

>>> rows = np.array([(7, 0.0, 2.5), (8, 0.1, np.nan)],
...                 dtype=[("step", "<i8"), ("time", "<f8"), ("loss", "<f4")])
>>> window = Window(rows=rows)
>>> window.step, window.value("loss"), window.value("scale")
(8, nan, nan)
>>> window.last("loss")
Measurement(row=0, step=7, value=2.5)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import Event

Rows = NDArray[np.void]
Mask = NDArray[np.bool_]

# A detector may look this many rows back, no further: enough for 32 of the checks of the
# parameters (one in 128 steps), and half a megabyte per lane.
HISTORY = 4096


class Measurement(NamedTuple):
    """A value that was measured, and where."""

    row: int
    step: int
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Rows of one lane, oldest first, of all its optimizers; the last row is the one judged.

    ``fresh`` says how many rows at the end have not been judged before. ``Detector.suspects``
    gets all of them at once; ``Detector.check`` always gets one (``fresh == 1``) with
    at most ``HISTORY`` rows, so that a finding never depends on how the rows were delivered.
    A column that the run does not have reads as NaN, which is also how "not measured" reads.
    """

    rows: Rows
    fresh: int = 1
    events: Sequence[Event] = ()
    layers: Mapping[int, Sequence[str]] = field(default_factory=dict[int, Sequence[str]])
    buffers: Mapping[int, Sequence[str]] = field(default_factory=dict[int, Sequence[str]])
    batches: Mapping[int, Mapping[str, Any]] = field(default_factory=dict[int, Mapping[str, Any]])
    rank: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def new(self) -> Rows:
        """The rows that have not been judged before."""
        return self.rows[len(self.rows) - self.fresh :]

    @property
    def step(self) -> int:
        """Step of the row that is judged."""
        return int(self.rows["step"][-1])

    @property
    def opt(self) -> int:
        """Optimizer of the row that is judged; 0 where the column is missing."""
        return self.count("opt")

    @property
    def batch(self) -> Mapping[str, Any]:
        """The recorded batch of the judged row; empty when none was recorded."""
        return self.batches.get(self.step, {})

    @property
    def own(self) -> NDArray[np.intp]:
        """Indices of the rows of the judged row's optimizer, itself included."""
        return np.flatnonzero(optimizer(self.rows) == self.opt)

    def value(self, column: str, index: int = -1) -> float:
        """One value; of the judged row unless told otherwise."""
        names = self.rows.dtype.names or ()
        return float(self.rows[column][index]) if column in names else math.nan

    def count(self, column: str, index: int = -1) -> int:
        """One value as a whole number; 0 where it was not measured or makes no sense."""
        value = self.value(column, index)
        return int(value) if math.isfinite(value) else 0

    def says(self, column: str, index: int = -1) -> bool:
        """Whether a count or a flag was measured and is above zero."""
        return self.value(column, index) > 0

    def last(
        self, column: str, *, before: int | None = None, opt: int | None = None
    ) -> Measurement | None:
        """The latest measured value of a column, looking back from the judged row.

        Args:
            column: which one; infinity counts as measured, NaN does not.
            before: look only at rows before this index; without it the judged row counts too.
            opt: look only at rows of this optimizer.
        """
        if column not in (self.rows.dtype.names or ()):
            return None
        measured = ~np.isnan(self.rows[column][:before])
        if opt is not None:
            measured &= optimizer(self.rows[:before]) == opt
        found = np.flatnonzero(measured)
        if not found.size:
            return None
        row = int(found[-1])
        return Measurement(row, int(self.rows["step"][row]), self.value(column, row))

    def layer(self, column: str) -> str:
        """The layer that an index column of the judged row points at; "" for none."""
        return _name(self.layers.get(self.opt, ()), self.value(column), "layer")

    def buffer(self, column: str = "buffer_layer") -> str:
        """The buffer that an index column of the judged row points at; "" for none."""
        return _name(self.buffers.get(self.opt, ()), self.value(column), "buffer")

    def ending(self, index: int) -> Window:
        """The same window as it was when row ``index`` was the newest."""
        end = index + 1
        return replace(self, rows=self.rows[max(0, end - HISTORY) : end], fresh=1)


def column(rows: Rows, name: str) -> NDArray[Any]:
    """A column of ``rows``; all NaN when the run does not have it."""
    if name in (rows.dtype.names or ()):
        return rows[name]
    return np.full(len(rows), np.nan, dtype=np.float32)


def optimizer(rows: Rows) -> NDArray[Any]:
    """The optimizer of each row; 0 where it was not recorded."""
    recorded = column(rows, "opt")
    return np.where(np.isfinite(recorded), recorded, 0)


def _name(names: Sequence[str], index: float, what: str) -> str:
    if not math.isfinite(index) or index < 0:
        return ""
    position = int(index)
    return names[position] if position < len(names) else f"{what} number {position}"
