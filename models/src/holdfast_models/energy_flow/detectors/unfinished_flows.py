"""EFL001: hardly any flow reaches a face of the lattice by itself."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import Finding, Severity, Window

from ...recorded_numbers import NotedNumbers, RecordDetector
from ._surface import EMPTY


class UnfinishedFlows(RecordDetector):
    """Hardly any flow reaches a face: the lattice steps are used up, and nothing arrives.

    What it detects:
        ``completion_rate``, the share of flows that reached a face by themselves, is at most
        ``least`` in ``records`` records in a row, the first one of the run left out. An error
        where the surface stays empty with it (``flows.end=drop``), a warning where flows did
        finish at the start, information where it was never otherwise and the flows are projected.

    Why it matters:
        Flows that never finish are dropped, and the output mapper learns nothing; or they are
        projected to the nearer face, so that every one takes all steps, early stop finds
        nothing to stop, and on which face a flow ends means nothing.

    Evidence:
        ``completion_rate`` now and ``completion_start`` in the first record; ``mean_steps`` of the
        flows that were collected; ``filled``: the share of cells that were reached; ``since``:
        the step of the first record without finished flows.

    Usual causes:
        - ``carrier.z_drift`` is 0, or too small for ``flows.steps``: a flow needs 1 / steps of it.
        - ``flows.steps`` was lowered with a drift that was set for more.
        - ``flows.filter_below`` ends flows before they arrive.
        - The carrier has learned to work against the drift.

    What to do:
        1. Leave ``model.carrier.z_drift`` at null: then it is 2 / steps, enough for any flow.
        2. Raise ``model.flows.steps``, or take ``model.flows.filter_below`` away.
        3. As long as they do not finish, keep ``model.flows.end=project``.

    False alarms:
        A run without drift that projects all flows can learn well, so that alone is information:
        an 8 x 8 x 4 lattice with ``z_drift=0`` had a completion of 0 and a cosine of 0.95. Nine
        small runs with the default drift stayed above 0.47, where flows have children, and above
        0.85 elsewhere. ``least = 0.01`` is a guess far below.

    Cost:
        None of its own: it reads what the trainer notes every 50 steps.

    Reproduce:
        ``holdfast train energy_flow --set model.carrier.z_drift=0 --set model.flows.end=drop
        --set model.flows.noise_cells=0 --set train.epochs=null --set train.steps=200``
    """

    code = "EFL001"
    name = "unfinished_flows"
    severity = Severity.WARNING

    @dataclass(frozen=True, kw_only=True)
    class Options(RecordDetector.Options):
        """When nothing finishes; see *False alarms* for where these come from."""

        least: float = 0.01
        records: int = 2

    def check(self, window: Window) -> Finding | None:
        """See whether anything has finished in the last records."""
        found = self.news(window, "completion_rate", "filled")
        recent = found[1:][-self.options.records :]
        if len(recent) < self.options.records:
            return None
        if any(record["completion_rate"] > self.options.least for record in recent):
            return None
        first, now = found[0], recent[-1]
        since = _since(found, self.options.least)
        stopped = first["completion_rate"] > self.options.least
        reported = (
            f"{first['completion_rate']:.1%} at the start" if stopped else "as from the start"
        )
        if now["filled"] <= EMPTY:
            severity, fate = Severity.ERROR, "all others are lost"
        else:
            severity = Severity.WARNING if stopped else Severity.INFO
            fate = "all others are projected"
        return self.finding(
            window,
            f"{now['completion_rate']:.1%} of the flows reach a face since step "
            f"{since} ({reported}); "
            f"{fate}",
            "leave model.carrier.z_drift at null or raise model.flows.steps, so that a flow can "
            "arrive; until then model.flows.end=project keeps them",
            severity=severity,
            evidence={
                "completion_rate": now["completion_rate"],
                "completion_start": first["completion_rate"],
                "mean_steps": now.get("mean_steps"),
                "filled": now["filled"],
                "since": since,
            },
        )


def _since(found: list[NotedNumbers], least: float) -> int:
    """Step of the first record of the last stretch without finished flows."""
    since = found[-1].step
    for record in reversed(found):
        if record["completion_rate"] > least:
            break
        since = record.step
    return since
