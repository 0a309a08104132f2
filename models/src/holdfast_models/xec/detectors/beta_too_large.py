"""XEC003: ``loss_beta`` is far above the spread of the target."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import Finding, Severity, Window

from ...recorded_numbers import RecordDetector

_PREFIX = "beta_over_spread_"


class BetaTooLarge(RecordDetector):
    """``loss_beta`` is far above the spread of its target: smooth_l1 is a faint mse.

    What it detects:
        ``beta_over_spread_TASK``, ``loss_beta`` in units of the standard deviation of the true
        values in a batch, above ``times`` for any task.

    Why it matters:
        Below beta smooth_l1 is d^2 / (2 beta): no residual is ever large enough for the robust
        part, and the gradient shrinks by the same factor. Energies in GeV with beta = 1 learn
        100 times more slowly than those of another task beside them.

    Evidence:
        ``task``; ``ratio``: beta in units of the spread; ``tasks``: how many tasks are beyond.

    Usual causes:
        - ``loss_beta`` is in the unit of the target (GeV, s, cm, deg), and 1.0 was left there.
        - The data are nearly monoenergetic.

    What to do:
        1. angle 1.0 deg; energy 0.002 to 0.01 GeV; timing 1e-10 s; uvwFI 0.5 cm or so: the size
           of the errors that you expect.
        2. Or take ``loss_fn=l1`` or ``gaussian_nll``, which have no such length.

    False alarms:
        Small batches of nearly equal events; a batch without any spread is skipped.

    Cost:
        None of its own: it reads what the trainer notes every 50 steps.

    Reproduce:
        ``holdfast train xec.reg --preset small --set data.synth.events=512
        --set tasks.energy.loss_beta=1.0``
    """

    code = "XEC003"
    name = "beta_too_large"
    severity = Severity.WARNING
    within = 50

    @dataclass(frozen=True, kw_only=True)
    class Options(RecordDetector.Options):
        """The specification's limit."""

        times: float = 10.0

    def check(self, window: Window) -> Finding | None:
        """Look at every task of the newest record."""
        found = self.news(window)
        if not found:
            return None
        ratios = {
            name.removeprefix(_PREFIX): value
            for name, value in found[-1].values.items()
            if name.startswith(_PREFIX) and value > self.options.times
        }
        if not ratios:
            return None
        task, ratio = max(ratios.items(), key=lambda one: one[1])
        return self.finding(
            window,
            f"loss_beta of {task} is {ratio:.3g} times the spread of its true values",
            f"set tasks.{task}.loss_beta to the size of the errors you expect, in the unit of "
            "the target: energy 0.005, timing 1e-10, angle 1, uvwFI 0.5",
            severity=self.severity,
            evidence={"task": task, "ratio": ratio, "tasks": len(ratios)},
        )
