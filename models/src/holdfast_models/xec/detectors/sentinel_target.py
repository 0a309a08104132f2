"""XEC004: values that stand for "not available" are trained on."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import Finding, Severity, Window

from ...recorded_numbers import RecordDetector


class SentinelTarget(RecordDetector):
    """True values that mean "not available" reach the loss: 1e10, NaN or infinity.

    What it detects:
        ``sentinel_targets`` above 0 in a record: true values of a batch, or hidden sensors,
        that are not finite or beyond 9e9, which files use where nothing is known.

    Why it matters:
        One such value is 1e11 spreads away: its gradient is all there is in the step, or the
        loss is NaN and the step is lost. Averages and resolutions of validation are ruined too.

    Evidence:
        ``sentinel_targets``: such values per batch, the mean since the record before; ``total``:
        the mean of all records; ``since``: the step of the first record that has some.

    Usual causes:
        - Events whose truth or reference reconstruction failed are still in the file.
        - A truth branch that the simulation did not fill for this sample.

    What to do:
        1. ``holdfast xec check-data FILES`` counts them by branch.
        2. Remove these events from the file, or switch the task off that needs the branch.

    False alarms:
        None are known: no true value of these quantities is near 9e9 in its unit.

    Cost:
        None of its own: it reads what the trainer notes every 50 steps.

    Reproduce:
        Write 1e10 into ``energyTruth`` of some events of a file of ``holdfast xec synth``, then
        ``holdfast train xec.reg --preset small --set data.train_path=FILE``
    """

    code = "XEC004"
    name = "sentinel_target"
    severity = Severity.ERROR
    within = 50

    @dataclass(frozen=True, kw_only=True)
    class Options(RecordDetector.Options):
        """None should be there."""

        allowed: float = 0.0

    def check(self, window: Window) -> Finding | None:
        """Look at the newest record."""
        found = self.news(window, "sentinel_targets")
        if not found or found[-1]["sentinel_targets"] <= self.options.allowed:
            return None
        counts = [record["sentinel_targets"] for record in found]
        first = next(r for r in found if r["sentinel_targets"] > self.options.allowed)
        return self.finding(
            window,
            f"{counts[-1]:.3g} true values per batch mean `not available` (1e10, NaN) and are "
            f"trained on, since step {first.step}",
            "count them with `holdfast xec check-data FILES` and leave these events out, or "
            "switch the task off whose branch is not filled",
            severity=self.severity,
            evidence={
                "sentinel_targets": counts[-1],
                "total": sum(counts) / len(counts),
                "since": first.step,
            },
        )
