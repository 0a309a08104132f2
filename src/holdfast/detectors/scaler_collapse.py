"""NUM006: the GradScaler keeps lowering its scale without finding one that works."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..types import Finding, Severity
from ._examples import rows
from ._symptoms import (
    Blame,
    blame,
    overflowed,
)
from ._window import Mask, Window, column
from .base import Detector


class ScalerCollapse(Detector):
    """The fp16 GradScaler keeps lowering its scale without finding one that works.

    What it detects:
        Gradients overflow step after step although the loss is finite: at least ``streak``
        steps in a row, down to a scale that healthy trainings never had, or the scale has
        fallen below ``lowest``. Steps whose loss is NaN are NUM001 and steps with bad weights
        NUM003; no scale can help there, and they are not counted here.

    Why it matters:
        The scaler skips every overflowing step silently: the loop runs, the scheduler
        advances, nothing is learned. Below a scale of 1 the gradients overflow even unscaled,
        so more halving does not help; at 0 the scaler divides by zero and every
        gradient is NaN for good.

    Evidence:
        ``streak``: overflowing steps in a row up to this one, ``streak_start``; ``scale`` now
        and ``scale_before`` the streak; ``overflow_layer``: the overflowing tensor
        nearest to the loss.

    Usual causes:
        - Divergence: the loss climbs, its gradients grow faster than the scale can fall.
        - A loss that is a sum where it should be a mean: its gradients are larger by the
          number of elements and need a scale that much lower.
        - Activations near 65504 (wide residual sums, attention logits without 1/sqrt(d)).
        - A model that was trained in bf16 and is fine-tuned in fp16: bf16 reaches 3e38.
        - A derivative that is infinite, as those of ``sqrt`` and ``norm`` at 0: no scale helps.
        - ``scaler.unscale_`` and ``clip_grad_norm_`` in the wrong order, or one scaler stepped
          for two optimizers without ``update`` in between.

    What to do:
        1. bf16 where the hardware has it: ``torch.autocast(..., dtype=torch.bfloat16)`` and no
           scaler at all.
        2. Otherwise take the mean, compute the loss and the last layer in fp32, and look at the
           named layer.
        3. A climbing loss: lower the learning rate first; the scaler is only the symptom.

    False alarms:
        Finding the scale at the start overflows a few steps by design. Measured from 65536 in
        fp16 on CPU, three seeds each: nine small trainings that stayed healthy (MLPs, one with
        inputs of size 100, convolutional, transformer; AdamW and SGD) overflowed 0 to 5 steps
        in a row and never fell below a scale of 2048; the one that diverged overflowed 125 in a
        row, down to a scale of 0. ``streak = 12`` is more than twice the longest healthy one;
        where between 5 and 125 it should be is a guess. One that began higher takes longer:
        above ``ordinary`` nothing is said. ``lowest = 1`` follows from the
        format: below it unscaled gradients are beyond 65504. A scale below 1 that was set by
        hand and never fell is ignored.

    Cost:
        None of its own: it reads the scale that the scaler already holds.

    Reproduce:
        ``holdfast run -m holdfast.faults.scaler_collapse``, against
        ``python -m holdfast.faults.scaler_collapse``.
    """

    code = "NUM006"
    name = "scaler_collapse"
    severity = Severity.ERROR
    other_severities = ((Severity.WARNING, "where the scale has not fallen yet"),)
    needs = ("scale",)
    since = "0.1"
    within = 12
    fires = rows(8, scale={-2: 1.0, -1: 0.5}, scaler_skipped={-1: 1})
    silent = rows(16, scale=2048.0, scaler_skipped=[0] * 5 + [1] * 11, grad_bad=[0] * 5 + [1] * 11)

    @dataclass(frozen=True, kw_only=True)
    class Options(Detector.Options):
        """When an overflow is no longer ordinary; see *False alarms* for where these come from."""

        streak: int = 12
        """Overflows in a row."""
        ordinary: float = 2048.0
        """The lowest scale that a healthy training had: down to there it may still be found."""
        lowest: float = 1.0
        """The scale below which it has collapsed."""

    def suspects(self, window: Window) -> Mask:
        """Rows that overflowed or whose scale is very low."""
        rows, scales = window.new, column(window.rows, "scale")
        scale = scales[len(window) - window.fresh :]
        # One that was never higher has not fallen.
        fallen = (scale < self.options.lowest) & (scale < np.fmax.reduce(scales, initial=-np.inf))
        return overflowed(rows) | fallen

    def check(self, window: Window) -> Finding | None:
        """Count the overflowing steps in a row, and see how far the scale has fallen."""
        if blame(window) not in (Blame.OVERFLOW, Blame.NOTHING):
            return None
        own = window.own
        scale, scales = window.value("scale"), column(window.rows, "scale")[own]
        # A scale that rose had good steps before it, even if their rows were dropped.
        ends = ~overflowed(window.rows)[own]
        ends[:-1] |= scales[1:] > scales[:-1]
        good = np.flatnonzero(ends)
        start = int(good[-1]) + 1 if good.size else 0
        streak = len(own) - start
        fallen = scale < self.options.lowest and (streak > 0 or bool(np.any(scales > scale)))
        if not fallen and (streak < self.options.streak or scale > self.options.ordinary):
            return None
        began = int(window.rows["step"][own[start]]) if streak else window.step
        before = float(scales[max(0, start - 1)])
        layer = window.layer("grad_layer")
        so_far = "" if fallen else " so far"
        story = f"{streak} steps in a row overflowed since step {began}" if streak else "it fell"
        return self.finding(
            window,
            f"no scale is low enough{so_far}: {scale:g} now, {before:g} before ({story})",
            f"look at {layer or 'the loss'}: a sum instead of a mean, activations near 65504 (bf16 "
            "autocast without a scaler reaches further), or a derivative that no scale makes "
            "finite (sqrt, norm or log at 0); lower the learning rate if the loss climbs",
            severity=Severity.ERROR if fallen else Severity.WARNING,
            evidence={
                "scale": scale,
                "scale_before": before,
                "streak": streak,
                "streak_start": began,
                "overflow_layer": layer,
            },
        )
