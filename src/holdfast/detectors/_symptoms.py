"""Attribute each bad row to one fault, so that one cause gives one finding.

A poisoned sample makes the loss NaN, the NaN loss makes every gradient NaN, and an update that
is applied makes every weight NaN. Reported one by one that is four faults; a reader wants
the first. Every row is therefore blamed on the most causal thing that was bad:
input, then parameter, then loss, then gradient; a buffer only when all of these are fine.
"""

from __future__ import annotations

import math
from enum import Enum

import numpy as np

from ._window import (
    Mask,
    Rows,
    Window,
    column,
)


class Blame(Enum):
    """The fault that a row is attributed to, most causal first."""

    INPUT = "input"
    PARAMETER = "parameter"
    LOSS = "loss"
    OVERFLOW = "overflow"
    GRADIENT = "gradient"
    BUFFER = "buffer"
    NOTHING = "nothing"


def loss_bad(rows: Rows) -> Mask:
    """Rows with a non-finite loss. NaN alone means "no loss was seen"."""
    return (column(rows, "loss_bad") > 0) | np.isinf(column(rows, "loss"))


def gradient_bad(rows: Rows) -> Mask:
    """Rows with a non-finite gradient.

    The L2 norm is no evidence: it overflows to infinity for finite gradients beyond 1e19.
    """
    return (column(rows, "grad_bad") > 0) | np.isinf(column(rows, "grad_max"))


def scaled(rows: Rows) -> Mask:
    """Rows of a step that ran under a GradScaler."""
    return ~np.isnan(column(rows, "scale"))


def overflowed(rows: Rows) -> Mask:
    """Rows whose gradients overflowed under a GradScaler while the loss was finite."""
    bad = gradient_bad(rows) | (column(rows, "scaler_skipped") > 0)
    return bad & scaled(rows) & ~loss_bad(rows)


def parameters_bad(window: Window) -> bool:
    """Whether the latest check of the optimizer found a non-finite parameter."""
    latest = window.last("param_bad", opt=window.opt)
    return latest is not None and latest.value > 0


def _buffer_is_news(window: Window) -> bool:
    """Whether buffers were finite at the last check; a mask never was."""
    before = window.last("buffer_bad", before=len(window) - 1, opt=window.opt)
    return before is not None and before.value == 0


def blame(window: Window) -> Blame:
    """The fault that the judged row is attributed to."""
    row = window.rows[-1:]
    loss, gradient = bool(loss_bad(row)[0]), bool(gradient_bad(row)[0])
    buffer, overflow = window.says("buffer_bad"), bool(overflowed(row)[0])
    suffered = loss or gradient or overflow or (buffer and _buffer_is_news(window))
    if window.says("input_bad") and suffered:
        return Blame.INPUT
    if parameters_bad(window):
        return Blame.PARAMETER
    if loss:
        return Blame.LOSS
    if overflow:
        return Blame.OVERFLOW
    if gradient:
        return Blame.GRADIENT
    return Blame.BUFFER if buffer else Blame.NOTHING


def kind_of_loss(window: Window) -> str:
    """The judged loss in words: "NaN", "inf", "-inf", or that one of several was bad."""
    value = window.value("loss")
    passes = window.value("backwards")
    if math.isfinite(value):
        return f"not finite in one of {passes:.0f} backward passes" if passes > 1 else "not finite"
    return "NaN" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def kind_of_gradient(window: Window) -> str:
    """The judged gradient in words; an infinite norm proves that there is no NaN."""
    values = (window.value("grad_max"), window.value("grad_norm"))
    if any(map(math.isinf, values)):
        return "inf"
    return "NaN" if all(map(math.isnan, values)) else "not finite"
