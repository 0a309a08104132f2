"""OPT002: the gradient norm of a step is many times the baseline of this run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..records.recovery import RolledBack
from ..types import Finding, Severity
from ._events import happened
from ._examples import rows
from ._outliers import (
    LOSS,
    NORM,
    Spike,
    ends_spike,
    far,
    rate,
    rate_advice,
    samples,
    spike,
)
from ._window import Mask, Window, column
from .base import Detector

_NAMED = 8


class GradientExplosion(Detector):
    """The gradient norm of a step is many times the baseline of this run.

    What it detects:
        Steps whose gradient norm was finite and above ``norm_limit``. With an ordinary loss this
        is information. Where the loss of the same step was far above its baseline too, and came
        back, the batch was the cause, or what the script does at that step alone, and the finding
        names the batch: a warning when its loss was ``beyond`` times the largest before it, or its
        norm ``huge`` times the baseline. A loss that stays high although updates were applied is
        OPT001.

    Why it matters:
        With plain SGD the update is too large by the same factor. Adam bounds the update but
        keeps the square in its second moment: for a thousand steps the effective learning rate
        is that much smaller. A skipped step does no harm.

    Evidence:
        ``grad_norm``, ``norm_baseline`` (the baseline), ``norm_limit``, ``times`` the baseline;
        ``clip``: the factor applied to the gradients; for a batch ``key``, ``peak`` of the loss,
        its baseline ``usual`` and ``largest_before``, ``back_at``: the step at which it was back,
        ``samples``: dataset indices.

    Usual causes:
        - One sample far outside the rest: a wrong unit, a broken record, a label out of place,
          an all-padding row, a sequence much longer than the others.
        - A division or a logarithm close to, not at, its singularity.
        - A cliff in the loss surface: recurrent nets, deep nets without normalisation, GAN
          critics, a policy that met a rare reward.
        - The last batch of an epoch with very few samples.

    What to do:
        1. A named batch: look at ``dataset[i]`` of its indices for values unlike the others.
        2. Often, and with an ordinary loss: clip (``--clip-adaptive``, or ``--clip-norm`` with a
           few times ``norm_baseline``), or lower the learning rate.
        3. On every pass over the same samples: repair them or drop them.

    False alarms:
        The limit follows the run: at least ten times the median norm (three together with the
        loss), eight robust deviations, 1.5 times the largest of the last 64. Large
        but steady norms, sums instead of means and heavy tails that have been seen before stay
        below it. Hard batches (a rare class, a rare reward) do not, and are information, as are
        wrong labels of the right kind. ``beyond = 100`` and ``huge = 1000`` are guesses, checked
        against the noisy and the spiking scripts of the tests.

    Cost:
        None of its own: the guard measures the norm on every step anyway.

    Reproduce:
        ``holdfast run -m holdfast.faults.gradient_explosion`` names the batch that throws
        ``python -m holdfast.faults.gradient_explosion`` back.
    """

    code = "OPT002"
    name = "gradient_explosion"
    severity = Severity.WARNING
    other_severities = ((Severity.INFO, "of a single large gradient, or a batch a little apart"),)
    needs = ("grad_norm", "outlier")
    since = "0.1"
    within = 16
    also_called = ("explode", "exploding")
    fires = rows(8, grad_norm={-1: 300}, outlier={-1: 1})
    silent = rows(8, grad_norm={-1: 14})

    @dataclass(frozen=True, kw_only=True)
    class Options(Detector.Options):
        """When the batch is to blame; see *False alarms* for where these come from."""

        beyond: float = 100.0
        """Factor of its loss on the largest loss before, from which on the batch is broken."""
        huge: float = 1000.0
        """Factor of its gradient norm on the baseline, likewise."""
        applied: int = 3
        """Updates applied during a spike after which the weights are suspected, not the data."""

    def suspects(self, window: Window) -> Mask:
        """Rows where only the norm is an outlier, and those that end a loss spike."""
        rows = window.new
        return (far(rows, NORM) & ~far(rows, LOSS)) | ends_spike(window)

    def check(self, window: Window) -> Finding | None:
        """Judge an outlier of the norm alone at once; with a high loss, when the loss is back."""
        row = window.rows[-1:]
        if far(row, NORM)[0] and not far(row, LOSS)[0]:
            return self._lone(window)
        high = spike(window)
        if high is None or not high.back or high.applied >= self.options.applied:
            return None
        culprits = high.rows[far(window.rows[high.rows], NORM)]
        if not culprits.size or happened(window, RolledBack, _step(window, high.rows[0])):
            return None
        return self._batch(window, high, culprits.tolist())

    def _lone(self, window: Window) -> Finding:
        usual, loss = window.value("loss_baseline"), window.value("loss")
        fine = f"loss {loss:.4g}"
        fine += f", baseline {usual:.4g}" if usual == usual else " not judged"
        return self.finding(
            window,
            f"{_norm(window)} ({fine}{_clipped(window)})",
            "nothing if this stays rare; else clip with --clip-adaptive, or lower the learning rate"
            f"{rate(window)}",
            severity=Severity.INFO,
            evidence=_numbers(window),
        )

    def _batch(self, window: Window, high: Spike, culprits: list[int]) -> Finding:
        at = window.ending(culprits[0])
        norms = [
            _times(window.value("grad_norm", r), window.value("norm_baseline", r)) for r in culprits
        ]
        broken = high.times >= self.options.beyond or max(norms) >= self.options.huge
        steps = [_step(window, row) for row in culprits]
        indices = [i for step in steps for i in samples(window.batches.get(step, {}))]
        many = f", and {len(steps) - 1} more steps up to {steps[-1]}" if len(steps) > 1 else ""
        others = high.as_high >= 0
        what = (
            f"{_norm(at)} and loss {high.peak:.4g}, baseline {high.usual:.4g}: "
            f"{'' if others else 'only here, '}the "
            f"loss was back at step {window.step}{_clipped(at)}{many}"
        )
        if indices:
            look = f"dataset[{indices[0]!r}] and the others of the batch{_listed(indices)}"
        else:
            look = f"the batch of step {at.step} (its dataset indices were not recorded)"
        advice = (
            f"look at {look} for values or labels unlike the rest (a wrong unit, a broken record), "
            "or at what the script does at this step alone (a penalty, a new phase)"
        )
        if not any(window.batches.get(step) for step in steps):
            # No loader has made it: there may be neither records nor labels.
            rare = "" if broken else "nothing if this stays rare; else "
            advice = f"{rare}look at what made the loss of step {at.step}"
        if others:
            # What other batches do as well is no fault of this one's records.
            loss = column(window.rows, "loss")[high.as_high]
            advice = (
                f"the loss was as high at step {_step(window, high.as_high)} ({loss:.4g}): where "
                "that batch was another one, the data are not to blame, "
                f"{rate_advice(window, at.step)}"
            )
        return self.finding(
            at,
            what,
            advice,
            severity=Severity.WARNING if broken else Severity.INFO,
            evidence=_numbers(at)
            | {
                "key": "batch",
                "count": len(steps),
                "skipped": sum(window.says("skipped", row) for row in culprits),
                "steps": steps,
                "peak": high.peak,
                "usual": high.usual,
                "largest_before": high.before,
                "back_at": window.step,
                "samples": indices,
            },
        )


def _step(window: Window, row: int) -> int:
    return int(window.rows["step"][row])


def _norm(window: Window) -> str:
    norm, usual = window.value("grad_norm"), window.value("norm_baseline")
    times = _times(norm, usual)
    compared = f", {times:.3g} times the baseline {usual:.3g}" if times == times else ""
    return f"gradient norm {norm:.4g}{compared}"


def _times(norm: float, usual: float) -> float:
    return norm / usual if usual > 0 and math.isfinite(norm) else math.nan


def _clipped(window: Window) -> str:
    clip = window.value("clip")
    return f", clipped by a factor of {clip:.2g}" if 0 <= clip < 1 else ""


def _numbers(window: Window) -> dict[str, Any]:
    names = ("grad_norm", "norm_baseline", "norm_limit", "clip")
    numbers: dict[str, Any] = {name: window.value(name) for name in names}
    return numbers | {"times": _times(numbers["grad_norm"], numbers["norm_baseline"])}


def _listed(indices: list[Any]) -> str:
    named = ", ".join(str(i) for i in indices[1:_NAMED])
    more = f", … {len(indices)} in all" if len(indices) > _NAMED else ""
    return f" ({named}{more})" if named else ""
