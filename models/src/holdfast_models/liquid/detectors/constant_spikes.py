"""LIQ001: most spiking units are silent, or fire at every step."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import Finding, Severity, Window

from ...recorded_numbers import RecordDetector


class ConstantSpikes(RecordDetector):
    """Most spiking units are silent or saturated: their rate says nothing about the input.

    What it detects:
        ``silent_units`` (share of units that never fired in a batch) and ``saturated_units`` (share
        with a rate above 0.95) together are at least ``share`` in ``records`` records in a row,
        the first one of the run not counted.

    Why it matters:
        A constant rate carries no information, and a membrane far from the threshold gets nearly no
        surrogate gradient. The loss still falls, through the membranes, less than it could.

    Evidence:
        ``silent_units``, ``saturated_units`` and the mean ``spike_rate`` now; ``near_threshold``:
        the share of membranes that a gradient reaches.

    Usual causes:
        - ``model.spikes.threshold`` far above the currents (silent), or far below them.
        - A learning rate that threw the encoder's weights far from where they started.
        - A steep surrogate from the first step on, so that silent units were never moved.

    What to do:
        1. Lower ``train.optimizer.lr`` by ten if the shares grew within the first steps.
        2. Lower ``model.spikes.threshold`` for silent units, raise it for saturated ones.

    False alarms:
        Seven small runs that learned (four kinds of cells, thresholds of 1 and 0.01) stayed below
        0.1 in 50 to 150 steps; a threshold of 100 gave 1.0, a learning rate of 0.1 gave 0.95.
        ``share = 0.5`` lies between. Long runs and sparse inputs were not measured.

    Cost:
        None of its own: it reads what the trainer records.

    Reproduce:
        ``holdfast train liquid --set model.spikes.threshold=100 --set self_check=false``
    """

    code = "LIQ001"
    name = "constant_spikes"
    severity = Severity.WARNING

    @dataclass(frozen=True, kw_only=True)
    class Options(RecordDetector.Options):
        """How many units may be constant; see *False alarms*."""

        share: float = 0.5
        records: int = 2

    def check(self, window: Window) -> Finding | None:
        """Add up the constant units of the last records."""
        names = ("spike_rate", "silent_units", "saturated_units")
        recent = self.news(window, *names)[1:][-self.options.records :]
        if len(recent) < self.options.records:
            return None
        if any(r["silent_units"] + r["saturated_units"] < self.options.share for r in recent):
            return None
        now = recent[-1]
        silent, saturated = now["silent_units"], now["saturated_units"]
        direction = "lower" if silent >= saturated else "raise"
        return self.finding(
            window,
            f"{silent:.0%} of the spiking units never fire and {saturated:.0%} fire at nearly "
            f"every step (mean rate {now['spike_rate']:.3g})",
            f"{direction} model.spikes.threshold, or lower train.optimizer.lr by ten if this began "
            "within the first steps",
            severity=self.severity,
            evidence={name: now.get(name) for name in (*names, "near_threshold")},
        )
