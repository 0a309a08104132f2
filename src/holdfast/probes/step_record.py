"""Record of one optimizer step, from the pre-hook until its row is written.

On the host everything is known at once. On a device the numbers arrive one to three steps
later; ``arrive`` fills them in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..records.columns import COLUMNS
from .baseline import SKIP
from .batches import Batch
from .gradients import DeviceReading
from .host_norms import GradientReading
from .timing import Timed
from .updates import Before

BLANK: dict[str, float] = dict.fromkeys(COLUMNS, math.nan)
"""A row on which nothing was measured; its order is that of the columns on disk."""


class StepRecord:
    """One step of one optimizer: where its gradients sit, what was measured, what was done.

    One is made for every step: what is not given stands on the class and costs nothing.
    """

    positions: Sequence[int] = ()
    layers: int = 0
    reading: GradientReading | None = None
    loss_bad: bool = False
    bad: bool = False
    """A number of this step is non-finite."""
    extreme: bool = False
    """All are finite, but an outlier so far off that the step is skipped."""
    outlier: int = 0
    acted: bool = False
    time: float = 0.0
    timed: Timed | None = None
    batches: Sequence[Batch] = ()
    moved: Sequence[tuple[Any, float]] = ()
    late: bool = False
    is_ordinary: bool = False
    """Its row is complete but for its times; see ``fast_path``."""
    clipped: bool = False
    """Its gradients were measured before the script clipped them."""
    planned: bool = False
    """Its decision was made on a device as in the step before; see ``device_fast_path``."""
    weights: Before | None = None
    checksums: Tensor | None = None
    """Of the weights before the step, where ranks must have the same."""
    cost_events: Sequence[tuple[torch.cuda.Event, torch.cuda.Event, float]] = ()
    losses_decide: bool = False
    skip_ordered: bool = False
    """Skipped on request, whatever its numbers are."""
    refused: bool = False
    """Another rank could not skip it, so that none did."""
    # Only on the device path: what is on its way, and what lies behind norms and loss.
    measured: DeviceReading | None = None
    scaled: bool = False
    still_scaled: bool = False
    """Its gradients carry the scale: the optimizer's kernel takes it away while it steps."""
    buffers: Sequence[int] = ()
    parameters: int = 0

    def __init__(self, step: int, opt: int, row: dict[str, float] | None = None) -> None:
        self.step = step
        self.opt = opt
        self.row = BLANK.copy() if row is None else row

    def see_gradients(self, reading: GradientReading) -> None:
        """Fill the gradient columns."""
        self.reading = reading
        row = self.row
        row["grad_norm"] = reading.total
        row["grad_max"] = reading.largest
        row["grad_bad"] = len(reading.bad)
        row["grad_layer"] = self.positions[reading.blamed] if reading.bad else -1

    @property
    def skipped(self) -> bool:
        """Whether this step was not taken."""
        return self.acted and (self.bad or self.extreme)

    def see_baseline(
        self, bits: int, loss: float, loss_limit: float, norm: float, norm_limit: float
    ) -> None:
        """Fill the baseline columns; ``bits`` as the baseline gives them."""
        self.outlier = bits & ~SKIP
        self.extreme = bool(bits & SKIP)
        row = self.row
        row["loss_baseline"] = loss
        row["loss_limit"] = loss_limit
        row["norm_baseline"] = norm
        row["norm_limit"] = norm_limit
        row["outlier"] = self.outlier

    def see_loss(self, loss: float, bad: bool) -> None:
        """Fill the loss columns."""
        self.loss_bad = bad
        self.row["loss"] = loss
        self.row["loss_bad"] = float(bad)

    def see_buffers(self, bad: Sequence[int]) -> None:
        """Fill the buffer columns."""
        self.row["buffer_bad"] = len(bad)
        self.row["buffer_layer"] = bad[0] if bad else -1

    def see_parameters(self, bad: Sequence[int]) -> None:
        """Fill the parameter columns."""
        self.row["param_bad"] = len(bad)
        self.row["param_layer"] = bad[0] if bad else -1

    def arrive(self, values: np.ndarray) -> None:
        """The device row has reached the host."""
        if self.measured is None or (
            self.planned and self._arrives_ordinary(self.measured, values)
        ):
            return
        reading, loss, extras = self.measured.read(values)
        if self.scaled:
            self.row["scale"] = float(extras[0])
            self.row["scaler_skipped"] = float(extras[1] > 0)
            extras = extras[2:]
            if self.still_scaled:
                reading = reading.unscaled(self.row["scale"])
        self.see_gradients(reading)
        if len(self.buffers):
            bad = [b for b, v in zip(self.buffers, extras, strict=False) if not math.isfinite(v)]
            self.see_buffers(bad)
        if self.parameters:
            weights = extras[len(self.buffers) :]
            self.see_parameters(np.flatnonzero(~np.isfinite(weights)).tolist())
        if self.measured.has_loss:
            self.see_loss(loss, not math.isfinite(loss))
        answer = self.measured.answer(values)
        if answer is not None:
            # A batch that is only looked at again says nothing about the run.
            self.see_baseline(0 if self.skip_ordered else int(answer[4]), *answer[:4])
            self.row["clip"] = answer[5]
        if self.measured.refused(values):
            self.acted, self.refused = False, True
        self.bad = bool(reading.bad) or self.skip_ordered or (self.losses_decide and self.loss_bad)
        self.row["skipped"] = float(self.skipped)

    def _arrives_ordinary(self, measured: DeviceReading, values: np.ndarray) -> bool:
        """Fill the columns of an ordinary step, as on nearly every step of a healthy run."""
        more = self.still_scaled or self.parameters or (self.buffers and not measured.along)
        found = None if more else measured.is_ordinary(values)
        if found is None:
            return False
        self.reading, reported = found
        row = self.row
        row["grad_norm"], row["grad_bad"], row["grad_layer"] = self.reading.total, 0.0, -1.0
        row["loss"], row["loss_bad"] = reported[0], 0.0
        row["loss_baseline"], row["loss_limit"], row["norm_baseline"], row["norm_limit"] = reported[
            1:5
        ]
        row["outlier"], row["clip"] = 0.0, reported[6]
        if self.buffers:
            row["buffer_bad"], row["buffer_layer"] = 0.0, -1.0
        if self.scaled:
            row["scale"], row["scaler_skipped"] = reported[7], float(reported[8] > 0)
        return True

    def norms_by_layer(self) -> np.ndarray:
        """One L2 norm per layer of the optimizer, NaN where there was no gradient."""
        norms = np.full(self.layers, np.nan, dtype=np.float32)
        if self.reading is not None:
            with np.errstate(over="ignore"):
                norms[list(self.positions)] = np.asarray(self.reading.norms)
        return norms
