"""Causes of non-finite values."""

from __future__ import annotations

import math
from typing import Any

from .base import Kind, Record


class TensorStats(Record):
    """One tensor in numbers; of a sharded one the part of this rank."""

    shape: tuple[int, ...] = ()
    """Sizes of its dimensions."""
    dtype: str = ""
    """As torch names it, without ``torch.``."""
    min: float | None = None
    """The smallest finite value; None without any, and for truth values."""
    max: float | None = None
    """The largest finite value; None without any, and for truth values."""
    mean: float | None = None
    """The mean of the finite values; None without any, and for truth values."""
    zeros: int = 0
    """Number of zeros."""
    negative: int = 0
    """Number of values below zero."""
    nan: int = 0
    """Number of NaN."""
    inf: int = 0
    """Number of infinities of either sign."""
    numel: int = 0
    """Number of values."""

    @property
    def low(self) -> float:
        """The smallest finite value, NaN without any: every comparison with it is false."""
        return math.nan if self.min is None else self.min

    @property
    def high(self) -> float:
        """The largest finite value, NaN without any."""
        return math.nan if self.max is None else self.max

    @property
    def bad(self) -> int:
        """Number of non-finite values."""
        return self.nan + self.inf


class Cause(Kind, kind="cause"):
    """The first operation of a bad step that made a non-finite value, or what brought one in."""

    how: str
    """How it was found: ``replay`` (the step was computed again), ``next`` (a later step was
    traced), ``carried`` (among the values that live across steps)."""
    phase: str
    """``forward``, ``backward``, ``parameter`` (a weight was bad before), ``input`` (the data
    was), ``carried`` (a variable keeps it from step to step)."""
    file: str
    """The innermost file of the user's own; empty where there is none."""
    line: int
    """The line in it, from 1; 0 where it is unknown."""
    observed: int = -1
    """The step on which it was observed; -1 where that was not recorded."""
    opt: int = 0
    """Number of the optimizer whose step was bad; -1 where the script updates weights by hand."""
    op: str = ""
    """The operation (``log``) or the autograd function (``SqrtBackward0``)."""
    function: str = ""
    """The function that holds the line."""
    code: str = ""
    """The statement at the line, without indentation."""
    start: int = 0
    """The first line of the statement; 0 where it is unknown."""
    excerpt: tuple[tuple[int, str], ...] = ()
    """The lines around the statement by their numbers."""
    module: str = ""
    """Dotted path of the module at work, as the model names it; empty outside of all."""
    library: str = ""
    """File and line inside a library, where the user's line only leads there."""
    inputs: tuple[TensorStats, ...] = ()
    """Forward: the tensors that went in. Backward: what was kept of the forward pass, then the
    incoming gradient."""
    output: TensorStats | None = None
    """The bad result, or the tensor that was bad before."""
    dtype: str = ""
    """Of the bad result; of a carried value ``tensor``, or empty for several in a tuple."""
    sample: Any = None
    """Dataset index of the one sample to blame; None where it is not one."""
    row: int | None = None
    """Its row in the batch."""
    samples: tuple[tuple[int, Any], ...] = ()
    """Row and dataset index of each bad sample, where these are not most of the batch."""
    samples_bad: int = 0
    """Number of bad rows."""
    columns: tuple[int, ...] = ()
    """The columns of a table that hold all of its bad values, where they are few."""
    layer: str = ""
    """The bad parameter or buffer by its name."""
    variable: str = ""
    """The variable that held bad data before the model saw them, or carries them on."""
    origin: str = ""
    """File and line at which it came into such a variable, as far as that is known."""

    @property
    def backward(self) -> bool:
        """Whether it arose in the backward pass."""
        return self.phase == "backward"

    @property
    def first_line(self) -> int:
        """The line on which the statement begins."""
        return self.start or self.line


class BatchReplay(Kind, kind="replay"):
    """A bad step is run again by the loop, which is handed its batches once more."""

    batches: int
    """How many batches it is handed."""
