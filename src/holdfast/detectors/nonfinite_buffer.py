"""NUM004: a module buffer is NaN or infinite while training looks healthy."""

from __future__ import annotations

import numpy as np

from ..types import Finding, Severity
from ._examples import rows
from ._symptoms import Blame, blame
from ._window import Mask, Window, column
from .base import Detector


class NonfiniteBuffer(Detector):
    """A buffer (running statistics, EMA) is NaN or infinite while training looks healthy.

    What it detects:
        A module buffer that takes part in training turned NaN or infinite, while the loss, the
        gradients, the weights and the batch of the same step were finite. A bad buffer beside
        a bad loss comes from the same bad forward pass and is counted there.

    Why it matters:
        BatchNorm does not use its running statistics in training mode, so the loss stays fine
        for the rest of the run; the first ``model.eval()`` returns NaN for every input. A
        running mean forgets nothing: NaN times 0.9 is NaN. Often it is noticed only when the
        finished checkpoint is used.

    Evidence:
        ``layer``: the buffer that is bad, the first of them; ``buffers_bad``: how many are.

    Usual causes:
        - One forward pass over a bad or empty batch, in a step whose result was thrown away:
          validation run in training mode, a warm-up pass, a step skipped by hand. The
          optimizer never saw it, the running statistics did.
        - Variance of a batch of one: the unbiased estimate divides by zero.
        - fp16 buffers, in which a variance above 65504 is infinite.
        - A user-written exponential average that was fed a NaN metric.

    What to do:
        1. holdfast restores a bad buffer to its last finite values at the end of the step,
           unless ``guard.restore_buffers`` is off. Then:
           ``for m in model.modules(): getattr(m, "reset_running_stats", int)()`` and some
           hundred batches in training mode; the weights are fine.
        2. Evaluate under ``model.eval()``, drop last batches of size one
           (``DataLoader(drop_last=True)``), keep buffers in fp32.
        3. In your own averages: ``torch.where(x.isfinite(), x, old)`` before the update.

    False alarms:
        Masks that hold ``-inf`` on purpose do not change and are not checked. Buffers that are
        infinite from the first check on (a running minimum before its first value) are not
        reported.

    Cost:
        A multi-tensor norm of the buffers that move; none for models without such buffers.

    Reproduce:
        ``holdfast run -m holdfast.faults.nonfinite_buffer``, against
        ``python -m holdfast.faults.nonfinite_buffer``.
    """

    code = "NUM004"
    name = "nonfinite_buffer"
    severity = Severity.WARNING
    needs = ("buffer_bad",)
    since = "0.1"
    fires = rows(8, buffer_bad={-1: 1}, buffer_layer={-1: 0})
    silent = rows(8, buffer_bad=1, buffer_layer=0)

    def suspects(self, window: Window) -> Mask:
        """Rows with a bad buffer."""
        return column(window.new, "buffer_bad") > 0

    def check(self, window: Window) -> Finding | None:
        """Blame the buffer only when everything else was fine."""
        if blame(window) is not Blame.BUFFER:
            return None
        layer, bad = window.buffer(), window.count("buffer_bad") or 1
        counts = column(window.rows, "buffer_bad")[window.own]
        if np.all(counts[~np.isnan(counts)] >= bad):
            return None
        counts = column(window.rows, "buffer_bad")[window.own]
        total = len(window.buffers.get(window.opt, ()))
        subject = f"buffer {layer} is" if layer else "buffers are"
        return self.finding(
            window,
            f"{subject} NaN or inf, {bad} of {total or 'an unknown number of'} buffers (loss and "
            "gradients finite)",
            "find the forward pass that fed it (a batch of one, validation in train mode, a huge "
            f"value); if holdfast may not restore buffers, {_anew(layer)} before evaluating or "
            "saving",
            layer=layer,
            evidence={"buffers_bad": bad},
        )


def _anew(layer: str) -> str:
    """How a buffer gets finite values: those of a norm have a method for it."""
    of_norm = layer.rpartition(".")[2] in ("running_mean", "running_var")
    return "call reset_running_stats()" if of_norm else "give it finite values"
