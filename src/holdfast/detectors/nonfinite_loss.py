"""NUM001: the loss itself is NaN or infinite."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..types import Finding, Severity
from ._examples import rows
from ._symptoms import (
    Blame,
    blame,
    kind_of_loss,
    loss_bad,
)
from ._window import Mask, Window, column
from .base import SKIPPED, Detector


class NonfiniteLoss(Detector):
    """The loss is NaN or infinite while the input batch and the weights are finite.

    What it detects:
        A value on which ``backward`` was called was NaN or infinite, at least one of them in
        case of gradient accumulation. A batch that was already bad is NUM005; weights that
        were already bad are NUM003; neither is counted here.

    Why it matters:
        Every gradient of such a step is NaN. One update with it turns every weight NaN, Adam
        keeps the NaN in its moments for good, and all later steps are lost. The loop goes on
        for hours without an error. Gradient clipping does not help: the norm is
        NaN and so is every gradient divided by it.

    Evidence:
        ``loss`` (what was seen), ``last_finite_loss`` and ``last_finite_step``, ``backwards`` in
        the step, ``lr``.

    Usual causes:
        - ``log`` or division of exactly zero: a probability that became 0, an empty mask in
          ``sum() / mask.sum()``, a cross-entropy in which every label is ``ignore_index``.
        - ``exp`` or a square that left the range of the format: 3.4e38 in fp32 and bf16,
          65504 in fp16 (``exp(12)`` is already beyond it).
        - A softmax over a row that is masked completely: ``-inf`` everywhere gives NaN.
        - Divergence: the loss climbed for many steps before. Then the learning rate is too
          high, warm-up is too short, or there is no clipping.

    What to do:
        1. Mostly the finding names the line and the fix: holdfast reran the step and traced it.
           Without a cause, go on here.
        2. Loss normal right before: look at the batch (its dataset indices are in
           ``batches.*.jsonl``) and at every log, division and softmax between model and loss.
           ``torch.autograd.set_detect_anomaly(True, check_nan=True)`` names the first backward
           function that returned NaN; it is slow, so use it for the steps around the finding.
        3. Loss climbing before: divide the learning rate by three or lengthen warm-up.
        4. Use the forms made for it: ``cross_entropy`` on logits instead of ``log(softmax)``,
           ``log1p``, ``logsumexp``, ``clamp(min=eps)`` inside the log and not after it, and
           compute the loss outside of fp16 autocast.

    False alarms:
        None known where a step really uses the loss. A script that checks for NaN itself and
        skips the step by hand but still calls ``backward`` is reported; silence it with
        ``ignore: [NUM001]``.

    Cost:
        None of its own: it reads two columns that the guard measures on every step.

    Reproduce:
        ``holdfast run -m holdfast.faults.nonfinite_loss`` survives what
        ``python -m holdfast.faults.nonfinite_loss`` does not.
    """

    code = "NUM001"
    name = "nonfinite_loss"
    severity = Severity.ERROR
    other_severities = SKIPPED
    needs = ("loss", "loss_bad")
    since = "0.1"
    fires = rows(8, loss={-1: math.nan}, loss_bad={-1: 1})
    silent = rows(8, loss={-1: math.nan}, loss_bad={-1: 1}, input_bad={-1: 1})

    def suspects(self, window: Window) -> Mask:
        """Rows with a bad loss."""
        return loss_bad(window.new)

    def check(self, window: Window) -> Finding | None:
        """Blame the loss unless the batch or the weights were bad before it."""
        if blame(window) is not Blame.LOSS:
            return None
        evidence: dict[str, Any] = {"backwards": window.value("backwards")}
        history = "no finite loss was seen before it"
        own = window.own
        before = own[np.isfinite(column(window.rows, "loss")[own])]
        if before.size:
            last, step = window.value("loss", before[-1]), int(window.rows["step"][before[-1]])
            history = f"last finite loss {last:.4g} at step {step}"
            evidence |= {"last_finite_loss": last, "last_finite_step": step}
        return self.finding(
            window,
            f"loss is {kind_of_loss(window)} ({history})",
            _advice(window),
            evidence=evidence,
        )


def _advice(window: Window) -> str:
    if math.isinf(window.value("loss")):
        return (
            "look for log or division of 0 between model and loss, and for what overflows (exp, "
            "squares, sums; in fp16 beyond 65504)"
        )
    return (
        "look for log, division or softmax of an empty or zero value between model and loss; "
        f"print the smallest and largest value of what the loss of step {window.step} is made of"
    )
