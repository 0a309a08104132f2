"""LIQ002: the time constants of the liquid cells collapse."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import Finding, Severity, Window

from ...recorded_numbers import RecordDetector


class ShortTimeConstants(RecordDetector):
    """Many liquid units have time constants far below one step: they keep no state of their own.

    What it detects:
        ``tau_short``, the share of units whose time constant is below 1/20 of a step, is at least
        ``share`` in ``records`` records in a row, the first one of the run not counted. A warning
        where it has risen by ``rise`` since the first record, else information.

    Why it matters:
        After one step such a unit keeps exp(-20) of its state and follows its input: elapsed time
        means nothing to it, and its saturated gate gets hardly any gradient.

    Evidence:
        ``tau_short`` now and ``tau_short_start`` in the first record.

    Usual causes:
        - A learning rate that drove the gates into saturation.
        - The backbone ``ltc`` with many units: conductances add up over all synapses.

    What to do:
        1. Lower ``train.optimizer.lr``, or ``train.clip``.
        2. Compare with ``model.liquid_backbone=ltc_scan``; with ``ltc`` take fewer units.

    False alarms:
        Small runs that learned stayed below 0.01 with all cells; a learning rate of 0.5 gave 0.69.
        Where nothing has to be remembered short time constants are right. ``rise`` is a guess.

    Cost:
        None of its own: it reads what the trainer records.

    Reproduce:
        ``holdfast train liquid --set train.optimizer.lr=0.5 --set train.steps=200``
    """

    code = "LIQ002"
    name = "short_time_constants"
    severity = Severity.WARNING

    @dataclass(frozen=True, kw_only=True)
    class Options(RecordDetector.Options):
        """How many units may be without memory; see *False alarms*."""

        share: float = 0.3
        rise: float = 0.1
        records: int = 2

    def check(self, window: Window) -> Finding | None:
        """Compare the last records with the share, then with the first record."""
        found = self.news(window, "tau_short", "spike_rate")
        recent = found[1:][-self.options.records :]
        if len(recent) < self.options.records:
            return None
        if any(record["tau_short"] < self.options.share for record in recent):
            return None
        start, now = found[0]["tau_short"], recent[-1]["tau_short"]
        risen = min(record["tau_short"] for record in recent) - start >= self.options.rise
        return self.finding(
            window,
            f"{now:.0%} of the liquid units have a time constant below 1/20 of a step, "
            f"{start:.0%} in the first record",
            "lower train.optimizer.lr, or compare with model.liquid_backbone=ltc_scan",
            severity=self.severity if risen else Severity.INFO,
            evidence={"tau_short": now, "tau_short_start": start},
        )
