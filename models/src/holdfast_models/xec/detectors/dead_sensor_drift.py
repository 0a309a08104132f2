"""XEC001: other sensors are dead than at the start of the run."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import Finding, Severity, Window

from ...recorded_numbers import RecordDetector


class DeadSensorDrift(RecordDetector):
    """The dead sensors of the training batches are not those of the start of the run.

    What it detects:
        In ``records`` records in a row ``dead_changed``, the share of sensors that are dead in at
        least half of the events more or less than in the first batch, above ``changed``; or
        ``dead_share`` more than ``more`` above that of the first record.

    Why it matters:
        The model learns to do without the sensors that are always dead. Data of another period
        have others: what it learned early is wrong for them, and validation measures a detector
        that training no longer shows.

    Evidence:
        ``dead_changed`` and ``dead_share`` now, ``dead_start`` in the first record; ``sensors``:
        how many sensors changed; ``since``: the step of the first such record.

    Usual causes:
        - Files of several run periods, read one after the other (``train.data.shuffle=false``).
        - A file whose ``dead`` flags or sentinels were written by another programme.
        - A board that was switched off during data taking.

    What to do:
        1. ``holdfast xec check-data FILES`` tells the dead sensors of each file.
        2. Shuffle, so that every batch holds events of all periods.
        3. Raise ``model.channel_dropout_rate``, or fill dead sensors with the inpainter first.

    False alarms:
        Shuffled events of several periods in large batches do not fire it, because a sensor that
        is dead in a third of the events stays so. Batches of fewer than ten events of mixed
        periods may.

    Cost:
        None of its own: it reads what the trainer notes every 50 steps.

    Reproduce:
        ``holdfast xec synth a.root --events 2000 --seed 1``, the same with ``b.root --seed 2``,
        then ``holdfast train xec.reg --preset small --set "data.train_path=?.root"
        --set data.cache=ram --set train.data.shuffle=false --set train.data.batch=16``
    """

    code = "XEC001"
    name = "dead_sensor_drift"
    severity = Severity.WARNING

    @dataclass(frozen=True, kw_only=True)
    class Options(RecordDetector.Options):
        """What is another detector; guesses: 24 sensors, and three boards of 16."""

        changed: float = 0.005
        more: float = 0.01
        records: int = 2

    def check(self, window: Window) -> Finding | None:
        """Compare the last records with the first batch."""
        found = self.news(window, "dead_share", "dead_changed")
        recent = found[-self.options.records :]
        if len(recent) < self.options.records:
            return None
        start = found[0]["dead_share"]
        changed = min(record["dead_changed"] for record in recent)
        gained = min(record["dead_share"] for record in recent) - start
        if changed <= self.options.changed and gained <= self.options.more:
            return None
        now = recent[-1]
        return self.finding(
            window,
            f"{now['dead_changed']:.1%} of the sensors are dead now and were not in the first "
            f"batch, or the reverse; {now['dead_share']:.1%} are dead, {start:.1%} at the start",
            "look for files of another period with `holdfast xec check-data`, and shuffle them "
            "among the others; or raise model.channel_dropout_rate",
            severity=self.severity,
            evidence={
                "dead_changed": now["dead_changed"],
                "dead_share": now["dead_share"],
                "dead_start": start,
                "sensors": round(now["dead_changed"] * 4760),
                "since": recent[0].step,
            },
        )
