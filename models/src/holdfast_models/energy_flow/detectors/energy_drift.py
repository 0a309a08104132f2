"""EFL004: the energies of the flows collapse to one value or run away."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import Finding, Severity, Window

from ...recorded_numbers import RecordDetector
from ._surface import EMPTY


class EnergyDrift(RecordDetector):
    """The energies that arrive collapse to one value or run away, against their own start.

    What it detects:
        ``energy_std``, the spread of the energies that were collected, in ``records`` records in
        a row: at most ``collapsed`` of what it was at the start, or at least ``grown`` times that
        and ``wide``. The start is the largest of the first ``start`` records.

    Why it matters:
        Energies are what the flows carry. Where all are alike, the surface says nothing about
        the sentence, and the output mapper has to amplify what is left of it; where they run
        away they end at the guard of 4, which has no gradient.

    Evidence:
        ``energy_std`` now and ``energy_start``; ``how``: ``collapse`` or ``growth``; ``cosine``
        of the training batches where it was noted; ``since``: the step of the first such record.

    Usual causes:
        - ``loss.surface`` draws both surfaces together; ``loss.spread`` is too low to hold them.
        - A learning rate that is too high for the carrier: changes of energy add up over steps.
        - Weight decay shrinks the gain of the input mapper in a run that learns nothing else.
        - Many more lattice steps than the carrier was trained with.

    What to do:
        1. Collapse: lower ``loss.surface`` or raise ``loss.spread``; look whether the cosine
           still rises, then the output mapper makes up for it.
        2. Growth: lower ``train.optimizer.lr``, or take ``model.carrier.energy=tanh``, which
           cannot leave 1.

    False alarms:
        Nine small runs with residual energies stayed between 0.69 and 1.1 times their start; with
        ``energy=tanh`` they grew from 0.005 to 0.12 in 300 steps, which is why growth has to be
        ``wide`` too and the start has three records. A long run forgets its first records (the
        last 512 events are kept); what drifts more slowly than that is not seen.

    Cost:
        None of its own: it reads what the trainer notes every 50 steps.

    Reproduce:
        No setting does it reliably in a short run; the tests feed recorded numbers.
    """

    code = "EFL004"
    name = "energy_drift"
    severity = Severity.WARNING

    @dataclass(frozen=True, kw_only=True)
    class Options(RecordDetector.Options):
        """What is far from the start; guesses, see *False alarms*."""

        collapsed: float = 0.1
        grown: float = 4.0
        wide: float = 1.5
        start: int = 3
        records: int = 2

    def check(self, window: Window) -> Finding | None:
        """Compare the last records with the first."""
        found = self.news(window, "energy_std", "filled", "completion_rate")
        first, later = found[: self.options.start], found[self.options.start :]
        recent = later[-self.options.records :]
        # Nothing that arrived has a spread of 0: that is another fault.
        if len(recent) < self.options.records or any(r["filled"] <= EMPTY for r in recent):
            return None
        start = max(record["energy_std"] for record in first)
        spreads = [record["energy_std"] for record in recent]
        collapsed = max(spreads) <= self.options.collapsed * start and start > 0
        grown = min(spreads) >= max(self.options.grown * start, self.options.wide)
        if not collapsed and not grown:
            return None
        advice = (
            "lower loss.surface or raise loss.spread, and see whether the cosine still rises"
            if collapsed
            else "lower train.optimizer.lr, or take model.carrier.energy=tanh, which is bounded"
        )
        return self.finding(
            window,
            f"the spread of the energies is {spreads[-1]:.3g}, {start:.3g} at the start: they "
            + ("are nearly all alike" if collapsed else "run away"),
            advice,
            severity=self.severity,
            evidence={
                "energy_std": spreads[-1],
                "energy_start": start,
                "how": "collapse" if collapsed else "growth",
                "cosine": recent[-1].get("cosine"),
                "since": recent[0].step,
            },
        )
