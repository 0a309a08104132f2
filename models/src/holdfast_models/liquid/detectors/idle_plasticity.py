"""LIQ003: plasticity or its controller is on and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import Finding, Severity, Window

from ...recorded_numbers import RecordDetector


class IdlePlasticity(RecordDetector):
    """Plasticity is on, and its updates change no weight.

    What it detects:
        ``fast_change``, the mean absolute change of a fast weight in an update, is below ``least``
        in ``records`` records in a row, the first one of the run not counted; or, with a meta
        controller, ``controller_moved`` is: after 25 updates all parameters of the rules are still
        those of the start.

    Why it matters:
        The run pays for plasticity and is reported as one with it; a comparison with a run without
        compares noise.

    Evidence:
        ``fast_change``, ``fast_at_bound`` and ``spike_rate`` now, ``controller_moved`` where there
        is a controller; ``consequence``: LIQ001 where no unit fires, so that there is nothing to
        learn from.

    Usual causes:
        - ``plasticity.lr`` is 0 or tiny, or the meta controller has turned it down.
        - No spikes, or liquid states that never cross 0.5: no events to pair.
        - Every optimizer step is skipped, and plasticity with it: LIQ004.
        - A controller that gets no hypergradient: no backward pass between two updates, or fast
          weights that nothing depends on.

    What to do:
        1. Raise ``plasticity.lr``, and see that units fire.
        2. Or set ``plasticity.on=false``: it costs time and does nothing.

    False alarms:
        Three small runs (homeostatic and bcm) had a ``fast_change`` of 5e-7 to 8e-6. ``least``
        follows from rounding: times ``alpha`` (0.1 at first) a change of 1e-7 is less than half the
        float32 spacing of a weight of 0.25. Over thousands of updates smaller changes do add up.

    Cost:
        None of its own: it reads what the trainer records.

    Reproduce:
        ``holdfast train liquid --set plasticity.on=true --set plasticity.lr=0``
    """

    code = "LIQ003"
    name = "idle_plasticity"
    severity = Severity.WARNING

    @dataclass(frozen=True, kw_only=True)
    class Options(RecordDetector.Options):
        """When an update changes nothing; see *False alarms*."""

        least: float = 1e-7
        records: int = 2

    def check(self, window: Window) -> Finding | None:
        """Look at the last updates."""
        names = ("fast_change", "fast_at_bound", "spike_rate")
        recent = self.news(window, *names)[1:][-self.options.records :]
        if len(recent) < self.options.records:
            return None
        idle = all(record["fast_change"] < self.options.least for record in recent)
        if not idle and any(record.get("controller_moved") != 0 for record in recent):
            return None
        now = recent[-1]
        known = [*names, *(name for name in ("controller_moved",) if name in now.values)]
        evidence: dict[str, float | str] = {name: now[name] for name in known}
        if now["spike_rate"] == 0:
            evidence["consequence"] = "LIQ001"
        return self.finding(
            window,
            f"an update of plasticity changes a fast weight by {now['fast_change']:.2g}"
            if idle
            else "the meta controller has changed no parameter of a rule since the start",
            "raise plasticity.lr, or set plasticity.on=false and save its time"
            if idle
            else "raise plasticity.meta.lr, or set plasticity.meta.on=false and save its time",
            severity=self.severity,
            evidence=evidence,
        )
