"""LIQ004: steps are taken, and the weights that are trained or measured stay as they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast import Finding, Severity, Window

from ...recorded_numbers import NotedNumbers, RecordDetector, series


class StillWeights(RecordDetector):
    """The optimizer steps and no weight changes: the learning rate has no effect.

    What it detects:
        ``weights_moved``, the share of steps that changed the weights, is 0 in ``records`` records
        in a row; or the learning rate was exactly 0 in all of the last ``steps`` steps; or the
        weights change and the last ``validations`` validations gave exactly the same loss.

    Why it matters:
        The run looks alive, the loss differs from batch to batch; it stays at the loss of an
        untrained model (ln V for V tokens) for as long as it runs.

    Evidence:
        ``weights_moved`` and ``loss`` of the last record, ``lr`` of the last step;
        ``validation_loss`` where it stays the same.

    Usual causes:
        - A warm-up that starts at 0 and never advances, or a schedule that ended at 0.
        - Every step is skipped: gradients are never finite, or a scaler keeps falling.
        - Frozen parameters, an optimizer of another copy of the model, a rate below rounding.
        - Validations that measure a copy (a running average) which nobody updates.

    What to do:
        1. Where the rate is 0: look at ``train.schedule``, its warm-up and its ``floor``.
        2. Where it is not: see whether steps were skipped, and train in float32 for 50 steps.

    False alarms:
        No bound is guessed: a weight changes or it does not. A run that is to stand still is
        reported all the same; the last steps of a schedule that ends at 0 are fewer. Losses of a
        validation that agree to the last digit need weights that agree, or steps too small for
        the precision of the run; ``validations = 3`` is a guess.

    Cost:
        None of its own: it reads what the trainer records, and the column of the learning rate.

    Reproduce:
        ``holdfast train liquid --set train.optimizer.lr=1e-30 --set train.steps=200``
    """

    code = "LIQ004"
    name = "still_weights"
    severity = Severity.ERROR
    needs = ("loss", "lr")

    @dataclass(frozen=True, kw_only=True)
    class Options(RecordDetector.Options):
        """For how long nothing may move."""

        records: int = 2
        steps: int = 50
        validations: int = 3

    def check(self, window: Window) -> Finding | None:
        """Look at the last records, then at the last learning rates."""
        recent = self.news(window, "weights_moved", "spike_rate")[-self.options.records :]
        if not recent:
            return None
        rates = window.rows["lr"][-self.options.steps :]
        zero = len(rates) == self.options.steps and bool(np.all(rates == 0))
        still = len(recent) == self.options.records and all(r["weights_moved"] == 0 for r in recent)
        if not zero and not still:
            return self._measured_copy(window, recent[-1])
        now, rate = recent[-1], window.value("lr")
        return self.finding(
            window,
            f"{now['weights_moved']:.0%} of steps change the weights, learning rate {rate:.3g}",
            "check the warm-up and floor of train.schedule"
            if zero
            else "look for skipped steps, frozen parameters and a rate below rounding",
            severity=self.severity,
            evidence={"weights_moved": now["weights_moved"], "lr": rate, "loss": now.get("loss")},
        )

    def _measured_copy(self, window: Window, now: NotedNumbers) -> Finding | None:
        """Look at the last validations of weights that change."""
        losses = [one["loss"] for one in series(window, "validation", "loss")]
        losses = losses[-self.options.validations :]
        if len(losses) < self.options.validations or len(set(losses)) > 1:
            return None
        return self.finding(
            window,
            f"the weights change, and {len(losses)} validations in a row gave the loss "
            f"{losses[-1]:.6g}",
            "see which weights are measured: the running average is to be updated after each step",
            severity=self.severity,
            evidence={
                "weights_moved": now["weights_moved"],
                "lr": window.value("lr"),
                "loss": now.get("loss"),
                "validation_loss": losses[-1],
            },
        )
