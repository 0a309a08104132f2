"""EFL005: the model predicts no better than the mean of the targets, and does not move."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from holdfast import Finding, Severity, Window

from ...recorded_numbers import NotedNumbers, RecordDetector, series
from ._surface import EMPTY


class IdleMapper(RecordDetector):
    """The mappers do not learn: no better than the mean of the targets, and no way from there.

    What it detects:
        In all validations of the last ``span`` steps or more, at least ``validations`` of them,
        the share of unexplained variance (``fvu``) is ``near`` or above, where 1 is the training
        mean; it has fallen by less than ``gain``, and the cosine of the training batches has
        risen by less than ``rise``. Nothing is said while the learning rate still rises.

    Why it matters:
        All mixing between features happens in the two mappers: if they do not learn, nothing
        can. A run at the mean looks alive, its loss falls for the first steps and its flows
        finish; hours later it is no better.

    Evidence:
        ``fvu`` now and ``fvu_before``, ``cosine`` of the last training batches and
        ``cosine_before``, ``since``: the step of the first validation that counts;
        ``consequence``: EFL002 where the surface is empty and the mappers cannot learn.

    Usual causes:
        - The learning rate is far too low, or so high that the first steps ruined the mappers.
        - The mappers are frozen, or missing among the parameters of an optimizer.
        - The surface is empty or always the same: EFL002 and EFL004 say so.
        - Inputs and targets that do not belong together: pairs in another order.

    What to do:
        1. Train with ``core=false``, the mappers only: if that learns, look at the flows.
        2. Try ``train.optimizer.lr`` ten times higher, then ten times lower, for 300 steps each.
        3. Check the pairs: ``holdfast energy_flow data validate``.

    False alarms:
        Both measures have to stand still. Training batches that get better while the validation
        does not is overfitting, not this. Eight small runs that learned had an ``fvu`` of 0.2 to
        0.8 after 100 steps, also with ``energy=tanh`` and a warm-up of 300; one at a learning
        rate of 1e-8 stayed at 1.70. A hard task may rest at the mean for longer than ``span``
        before it learns: the bounds are guesses.

    Cost:
        None of its own: it reads validations and what the trainer notes every 50 steps.

    Reproduce:
        ``holdfast train energy_flow --set train.optimizer.lr=1e-8 --set train.epochs=null
        --set train.steps=400 --set train.validation.steps=50``
    """

    code = "EFL005"
    name = "idle_mapper"
    severity = Severity.WARNING
    needs = ("loss", "lr")
    within = 400
    kind = "validation"

    @dataclass(frozen=True, kw_only=True)
    class Options(RecordDetector.Options):
        """What it means not to learn; guesses, see *False alarms*."""

        span: int = 200
        validations: int = 3
        near: float = 0.9
        gain: float = 0.05
        rise: float = 0.02

    def check(self, window: Window) -> Finding | None:
        """Look back over the validations of the last steps, and over the training batches."""
        recent = self._recent(self.news(window, "fvu", "cosine", "mrr"))
        if len(recent) < self.options.validations:
            return None
        before, now = recent[0], recent[-1]
        best = min(record["fvu"] for record in recent)
        if best < self.options.near or before["fvu"] - best >= self.options.gain:
            return None
        trained = [r for r in series(window, "numbers", "cosine") if r.step >= before.step]
        if len(trained) < 2 or _rises(window, before.step):
            return None
        cosines = [record["cosine"] for record in trained]
        if max(cosines) - cosines[0] >= self.options.rise:
            return None
        evidence: dict[str, float | str] = {
            "fvu": now["fvu"],
            "fvu_before": before["fvu"],
            "cosine": cosines[-1],
            "cosine_before": cosines[0],
            "since": before.step,
        }
        if trained[-1].get("filled") <= EMPTY:
            evidence["consequence"] = "EFL002"
        return self.finding(
            window,
            f"{now['fvu']:.0%} of the variance is unexplained, {before['fvu']:.0%} at step "
            f"{before.step}, and the training cosine stays at {cosines[-1]:.3f}",
            "train with core=false to see whether the mappers learn at all, and try "
            f"train.optimizer.lr ten times higher and lower (now {window.value('lr'):.3g})",
            severity=self.severity,
            evidence=evidence,
        )

    def _recent(self, found: list[NotedNumbers]) -> list[NotedNumbers]:
        """The validations of the last ``span`` steps and the one before; none in a short run."""
        if not found:
            return []
        start = found[-1].step - self.options.span
        old = [index for index, record in enumerate(found) if record.step <= start]
        return found[old[-1] :] if old else []


def _rises(window: Window, since: int) -> bool:
    """Whether the learning rate is higher than it was at a step: a warm-up is on its way."""
    rates = window.rows["lr"][window.rows["step"] >= since]
    rates = rates[np.isfinite(rates)]
    now = window.value("lr")
    return bool(rates.size) and math.isfinite(now) and now > 1.05 * float(rates[0])
