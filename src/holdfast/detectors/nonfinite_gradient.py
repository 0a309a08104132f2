"""NUM002: a gradient is NaN or infinite although the loss was finite."""

from __future__ import annotations

import math

from ..types import Finding, Severity
from ._examples import rows
from ._symptoms import (
    Blame,
    blame,
    gradient_bad,
    kind_of_gradient,
)
from ._window import Mask, Window
from .base import SKIPPED, Detector


class NonfiniteGradient(Detector):
    """A gradient is NaN or infinite although the loss was finite.

    What it detects:
        At least one gradient tensor passed to the optimizer held NaN or infinity, while loss,
        input batch and weights of the step were finite: the fault arose in backward. With a
        GradScaler, overflows are how it finds the scale, and it skips these steps; nothing is
        reported here then, and NUM006 watches for an overflow that does not end.

    Why it matters:
        The printed loss looks healthy up to the moment the update is applied; from the next
        step on everything is NaN and the place where it began is gone.
        ``clip_grad_norm_`` makes it worse: the total norm is NaN, every gradient is multiplied
        by it, and one bad layer becomes all layers.

    Evidence:
        ``layer``: the bad tensor nearest to the loss, where backward met it first;
        ``tensors_bad`` of ``tensors``; ``kind``: NaN or inf; ``loss``.

    Usual causes:
        - A derivative that is infinite where the function is not: ``sqrt``, ``norm`` or
          ``std`` at exactly 0, ``x ** p`` with p < 1 at 0, ``acos``/``atan2`` at the edge.
        - The ``where`` trap: ``torch.where(m, f(x), 0)`` still differentiates ``f`` at the
          masked values, and 0 * inf is NaN. Make the argument safe before ``f``:
          ``f(torch.where(m, x, 1))``.
        - bf16 or fp16 without a scaler: a finite loss whose backward passes 65504.
        - A hand-written backward (custom Function, Triton kernel) that divides.
        - Several ranks: another rank was bad and all-reduce spread it.

    What to do:
        1. Mostly the finding names the line and the fix: holdfast reran the step and traced it.
           Without a cause, go on here.
        2. One bad tensor: the operation comes right after that layer's output. All of them bad:
           it is in the loss, or clipping has spread it.
        3. ``with torch.autograd.detect_anomaly():`` around the steps of the finding prints the
           forward line of the first backward function that returned NaN.
        4. Add the epsilon inside: ``sqrt(x + 1e-12)``, ``x / (norm + 1e-6)``.

    False alarms:
        A gradient whose L2 norm overflows while its values are finite is not counted. A loop
        that zeroes bad gradients by hand after ``backward`` and before ``step`` is not seen
        as bad, because gradients are checked when the optimizer steps.

    Cost:
        One multi-tensor norm per step, which the guard needs to decide about the step anyway.

    Reproduce:
        ``holdfast run -m holdfast.faults.nonfinite_gradient`` survives what
        ``python -m holdfast.faults.nonfinite_gradient`` does not.
    """

    code = "NUM002"
    name = "nonfinite_gradient"
    severity = Severity.ERROR
    other_severities = SKIPPED
    needs = ("grad_bad",)
    since = "0.1"
    fires = rows(8, grad_bad={-1: 1}, grad_layer={-1: 1})
    silent = rows(8, grad_bad={-1: 1}, loss_bad={-1: 1})

    def suspects(self, window: Window) -> Mask:
        """Rows with a bad gradient."""
        return gradient_bad(window.new)

    def check(self, window: Window) -> Finding | None:
        """Blame the gradient only when nothing before it was bad."""
        if blame(window) is not Blame.GRADIENT:
            return None
        layer = window.layer("grad_layer")
        bad, total = window.count("grad_bad") or 1, len(window.layers.get(window.opt, ()))
        loss, kind = window.value("loss"), kind_of_gradient(window)
        where = f"gradient of {layer}" if layer else "a gradient"
        tensors = f"{bad} of {total} tensors" if total else f"{bad} tensor{'s' * (bad != 1)}"
        finite = f"loss finite, {loss:.4g}" if math.isfinite(loss) else "no loss was seen"
        return self.finding(
            window,
            f"{where} is {kind} in {tensors} ({finite})",
            _advice(window, layer, spread=bad > 1 and bad == total),
            layer=layer,
            evidence={"kind": kind, "tensors_bad": bad, "tensors": total},
        )


def _advice(window: Window, layer: str, *, spread: bool) -> str:
    tool = f"run step {window.step} under torch.autograd.detect_anomaly() to get the line"
    if spread:
        return (
            "every gradient is bad: the operation is in the loss itself, or clip_grad_norm_ "
            f"multiplied all by a NaN norm; {tool}"
        )
    where = f"after the output of {layer}" if layer else "in the model"
    return (
        f"look for sqrt, norm, division or torch.where at zero {where} and add the epsilon inside "
        f"it; {tool}"
    )
