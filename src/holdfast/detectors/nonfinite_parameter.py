"""NUM003: a weight is NaN or infinite."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..types import Finding, Severity
from ._examples import rows
from ._symptoms import (
    Blame,
    blame,
    gradient_bad,
    loss_bad,
)
from ._window import (
    HISTORY,
    Mask,
    Window,
    column,
    optimizer,
)
from .base import Detector


class NonfiniteParameter(Detector):
    """A weight is NaN or infinite, from the start or after an update.

    What it detects:
        A parameter tensor of the optimizer held NaN or infinity when it was checked: before
        the first step, every 128 steps, and after every bad step. Steps in between with a bad
        loss or gradient count as its consequences.

    Why it matters:
        A NaN weight stays NaN: NaN minus anything is NaN. Every forward pass through it is
        lost, and every checkpoint written from now on holds it. Skipping steps cannot save such
        a run; only the weights from before can.

    Evidence:
        ``layer`` and ``tensors_bad``; ``origin``, one of ``start``, ``update`` and
        ``outside``; ``clean_step``: the last check that found all finite; ``update_step``: the
        first bad step after it whose update was applied; ``consequence``: true with the latter:
        the finding at that step is the cause.

    Usual causes:
        - ``start``: ``torch.empty`` or ``nn.Parameter(torch.Tensor(n))`` without an init (the
          memory holds whatever was there), an init that divides by a zero fan-in, or a
          checkpoint saved after the weights had become NaN.
        - ``update``: a step with a NaN gradient was applied, because holdfast could only
          watch this optimizer (closures as in LBFGS) or skipping was off.
        - ``outside``: finite loss and gradients, or only skipped steps, and still a bad weight:
          a weight overflowed in fp16, an optimizer with ``eps=0`` divided 0 by 0,
          or code changed weights by hand (``.data``, EMA, weight norm, a merge).

    What to do:
        1. ``start``: initialise the named tensor, or load an older checkpoint; check it with
           ``all(p.isfinite().all() for p in model.parameters())``.
        2. ``update``: go back to a checkpoint from before ``update_step`` and repair the
           finding that stands at that step.
        3. ``outside``: keep master weights in fp32, give the optimizer an ``eps`` (1e-8 is lost
           in fp16: use 1e-4), and look at everything that writes to weights outside ``step``.

    False alarms:
        A parameter that holds infinity on purpose (a mask stored as ``nn.Parameter``) is
        reported; make it a buffer, which also keeps the optimizer away from it.

    Cost:
        One multi-tensor norm of the weights every 128 steps and after bad ones. A weight that
        goes bad with finite loss and gradients may therefore be seen up to 128 steps late.

    Reproduce:
        ``holdfast run -m holdfast.faults.nonfinite_parameter``, against
        ``python -m holdfast.faults.nonfinite_parameter``.
    """

    code = "NUM003"
    name = "nonfinite_parameter"
    severity = Severity.ERROR
    needs = ("param_bad",)
    since = "0.1"
    within = 128
    fires = rows(8, param_bad={-1: 1}, param_layer={-1: 0})
    silent = rows(8, loss_bad={-1: 1}, grad_bad={-1: 1})

    def suspects(self, window: Window) -> Mask:
        """Rows where a check found a bad weight, and bad rows after it."""
        rows = window.new
        return (column(rows, "param_bad") > 0) | loss_bad(rows) | gradient_bad(rows)

    def check(self, window: Window) -> Finding | None:
        """Blame this optimizer's parameters and say how they became bad."""
        reading = window.last("param_bad", opt=window.opt)
        if reading is None or not reading.value > 0 or blame(window) is not Blame.PARAMETER:
            return None
        bad = window.count("param_bad", reading.row) or 1
        layer = window.ending(reading.row).layer("param_layer")
        total = len(window.layers.get(window.opt, ()))
        origin = _origin(window)
        tensors = f"{bad} of {total} parameter tensors" if total else f"{bad} parameter tensors"
        subject = f"parameter {layer} is" if layer else "parameters are"
        return self.finding(
            window,
            f"{subject} NaN or inf, {tensors} in all ({origin.words})",
            origin.advice,
            layer=layer,
            # Skipping the step does not repair a weight.
            severity=self.severity,
            evidence={
                "tensors_bad": bad,
                "tensors": total,
                "origin": origin.kind,
                "consequence": origin.kind == "update",
                "clean_step": origin.clean_step,
                "update_step": origin.update_step,
            },
        )


@dataclass(frozen=True, slots=True)
class _Origin:
    """How the parameters became bad, as far as the rows tell."""

    kind: str
    words: str
    advice: str
    clean_step: float = math.nan
    update_step: float = math.nan


def _origin(window: Window) -> _Origin:
    opt, rows = window.opt, window.rows
    own = optimizer(rows) == opt
    checks = np.flatnonzero(own & ~np.isnan(column(rows, "param_bad")))
    clean = checks[column(rows, "param_bad")[checks] == 0]
    last = int(clean[-1]) if clean.size else -1
    step = int(rows["step"][last]) if clean.size else math.nan
    known = f"clean at step {step}" if clean.size else "never seen clean"
    since = rows[max(0, last) : -1]
    skipped = (column(since, "skipped") > 0) | (column(since, "scaler_skipped") > 0)
    bad = (loss_bad(since) | gradient_bad(since)) & own[max(0, last) : -1]
    applied = np.flatnonzero(bad & ~skipped)
    # A full window may begin anywhere, so only a short one knows what the first step was.
    if last < 0 and len(rows) < HISTORY and not np.any(own[: int(checks[0])]):
        return _Origin(
            "start",
            "on the first step, before any update",
            "initialise the tensor (torch.empty holds whatever was in memory) or load an "
            "older checkpoint: no later step can repair it",
        )
    if applied.size:
        culprit = int(since["step"][int(applied[0])])
        return _Origin(
            "update",
            f"{known}, the bad update of step {culprit} was applied",
            f"go back to a checkpoint from before step {culprit} and repair what made that step "
            "bad: see the finding at that step",
            step,
            culprit,
        )
    return _Origin(
        "outside",
        f"{known}, and no bad update was applied since",
        "look at what writes to weights besides the optimizer (.data, EMA, merging), and at fp16 "
        "weights or an optimizer with eps=0",
        step,
    )
