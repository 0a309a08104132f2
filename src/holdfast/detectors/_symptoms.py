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
    optimizer,
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
    """Whether the latest check of any optimizer found a non-finite parameter.

    Any optimizer counts: a NaN in a discriminator makes the loss of its generator NaN.
    """
    mine = window.last("param_bad", opt=window.opt)
    if mine is not None and mine.value > 0:
        return not _checked_afterwards(window)
    # Mostly none ever was; that is a quick test.
    if not np.any(column(window.rows, "param_bad") > 0):
        return False
    readings = (window.last("param_bad", opt=int(o)) for o in np.unique(optimizer(window.rows)))
    return any(r is not None and r.value > 0 for r in readings)


def _checked_afterwards(window: Window) -> bool:
    """Whether the only check so far may have come after the judged step's own update.

    Weights are checked before the step, from the first one on. An optimizer that trained well
    without ever being checked is one with a closure (LBFGS): its gradients appear inside the
    step, so everything is looked at after it, and a bad loss that was applied comes first.
    """
    before = len(window) - 1
    suffered = loss_bad(window.rows[-1:])[0] or gradient_bad(window.rows[-1:])[0]
    if not suffered or window.says("skipped") or math.isnan(window.value("param_bad")):
        return False
    trained = window.last("loss", before=before, opt=window.opt)
    checked = window.last("param_bad", before=before, opt=window.opt)
    return checked is None and trained is not None and math.isfinite(trained.value)


def input_is_harmless(window: Window) -> bool:
    """Whether an earlier step took a non-finite input without harm.

    Missing values are often stored as NaN and masked by the model; such a batch explains
    nothing.
    """
    rows = window.rows[:-1]
    fine = ~loss_bad(rows) & ~gradient_bad(rows) & ~(column(rows, "skipped") > 0)
    return bool(np.any((column(rows, "input_bad") > 0) & fine))


def _buffer_is_news(window: Window) -> bool:
    """Whether buffers were finite at the last check."""
    before = window.last("buffer_bad", before=len(window) - 1, opt=window.opt)
    return before is not None and before.value == 0


def blame(window: Window) -> Blame:
    """The fault that the judged row is attributed to."""
    row = window.rows[-1:]
    loss, gradient = bool(loss_bad(row)[0]), bool(gradient_bad(row)[0])
    buffer, overflow = window.says("buffer_bad"), bool(overflowed(row)[0])
    if (
        window.says("input_bad")
        and (loss or gradient or overflow or (buffer and _buffer_is_news(window)))
        and not input_is_harmless(window)
    ):
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
