"""EFL002: hardly a cell of the output surface is reached by a flow."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import Finding, Severity, Window

from ...recorded_numbers import RecordDetector
from ._surface import EMPTY


class EmptySurface(RecordDetector):
    """Hardly a cell of the output surface is reached: the output mapper sees nothing.

    What it detects:
        ``filled``, the share of cells that a flow ended in, is at most ``empty`` in ``records``
        records in a row, the first one of the run left out (error); or it has fallen to
        ``fallen`` of what it was in the first record (warning): the flows gather in few cells.

    Why it matters:
        The surface is all the output mapper is given. Cells that nothing reaches are zero for
        every sample: an empty surface is the same for all, and the best that can be learned from
        it is the mean of the targets.

    Evidence:
        ``filled`` now and ``filled_start`` in the first record; ``completion_rate``: the share of
        flows that reached a face; ``consequence``: EFL001 where no flow did.

    Usual causes:
        - No flow finishes and ``flows.end=drop`` leaves them out: EFL001 is the cause.
        - ``flows.filter_below`` ends nearly all flows on their way.
        - ``flows.capacity`` is far below batch times cells: few cells start a flow at all.
        - Displacements on x and y have grown until the flows pile up at the walls.

    What to do:
        1. ``model.flows.end=project`` collects the flows that did not arrive.
        2. Take ``model.flows.filter_below`` away; raise ``model.flows.capacity`` or lower
           ``train.data.batch``.
        3. Where it has fallen bit by bit, lower the learning rate or ``model.carrier.scale``.

    False alarms:
        Ten small runs had every cell filled in all records; one that lost all flows had none.
        Little capacity leads to a few percent (by arithmetic about 0.05 for ``max80``), and that
        is then the start it is compared with. ``empty`` and ``fallen`` are guesses.

    Cost:
        None of its own: it reads what the trainer notes every 50 steps.

    Reproduce:
        ``holdfast train energy_flow --set model.carrier.z_drift=0 --set model.flows.end=drop
        --set model.flows.noise_cells=0 --set train.epochs=null --set train.steps=200``
    """

    code = "EFL002"
    name = "empty_surface"
    severity = Severity.ERROR

    @dataclass(frozen=True, kw_only=True)
    class Options(RecordDetector.Options):
        """What is empty; guesses, see *False alarms*."""

        empty: float = EMPTY
        fallen: float = 0.1
        records: int = 2

    def check(self, window: Window) -> Finding | None:
        """Compare what is reached with nothing, then with the start."""
        found = self.news(window, "completion_rate", "filled")
        recent = found[1:][-self.options.records :]
        if len(recent) < self.options.records:
            return None
        first, now = found[0], recent[-1]
        most = max(record["filled"] for record in recent)
        empty = most <= self.options.empty
        if not empty and most > self.options.fallen * first["filled"]:
            return None
        evidence: dict[str, float | str] = {
            "filled": now["filled"],
            "filled_start": first["filled"],
            "completion_rate": now["completion_rate"],
        }
        if empty and max(record["completion_rate"] for record in recent) <= EMPTY:
            evidence["consequence"] = "EFL001"
        return self.finding(
            window,
            f"{now['filled']:.2%} of the output cells are reached, {first['filled']:.2%} at the "
            f"start, while {now['completion_rate']:.1%} of the flows reach a face",
            "set model.flows.end=project, take model.flows.filter_below away and raise "
            "model.flows.capacity; lower the learning rate if the flows gather bit by bit",
            severity=self.severity if empty else Severity.WARNING,
            evidence=evidence,
        )
