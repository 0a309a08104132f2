"""RNK003: DDP looks for unused parameters in vain, or some are never used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..types import Finding, Severity
from ._ranks import DDP, Origin, RankDetector, RankLane, origin, replicas, spot

_SHOWN = 4


class UnusedParameters(RankDetector):
    """DDP walks the graph of every step for unused parameters: some never get a gradient.

    What it detects:
        A DDP model with ``find_unused_parameters=True`` in which some parameters never get a
        gradient on any rank, or in which all of them do on every step that was looked at. Without
        the flag, DDP ends with an error at the second step; that is RUN001, which names the cause.

    Why it matters:
        With the flag DDP walks the whole graph after every forward pass and cannot overlap as much
        communication. Parameters that never get a gradient keep their first values.

    Evidence:
        ``ranks`` compared; ``layers``: names of parameters that never got a gradient, ``unused``
        their number ``of`` all; ``looks``: steps on which gradients of all layers were recorded.

    Usual causes:
        - The flag was set to get rid of an error, and the branch is gone since.
        - A head or a branch that no loss depends on.
        - Layers that should be frozen by ``requires_grad_(False)``.

    What to do:
        1. All are used: leave ``find_unused_parameters`` out.
        2. Some never are: remove them, let them take part in the loss, or freeze them before DDP
           is made; then leave the flag out.

    False alarms:
        A branch that is used rarely, as in a mixture of experts: gradients of all layers are
        recorded on some steps only, and are there on all ranks where one of them has used a layer.

    Cost:
        None: norms of layers are recorded anyway.

    Reproduce:
        ``holdfast run -m holdfast.faults.unused_parameters`` names the head that
        ``python -m holdfast.faults.unused_parameters`` never uses.
    """

    code = "RNK003"
    name = "unused_parameters"
    severity = Severity.INFO
    needs = ("grad_norm",)
    since = "0.1"
    within = 200

    @dataclass(frozen=True, kw_only=True)
    class Options(RankDetector.Options):
        """Guesses."""

        looks: int = 3
        """Steps with the gradients of all layers before anything is said."""
        steps: int = 100
        """Steps of the run before all are called used: a branch may come later."""

    def compare(self, lanes: Sequence[RankLane]) -> Iterator[Finding]:
        """What is never used, or that all is."""
        if replicas(lanes) != DDP or not all(lane.facts.find_unused for lane in lanes):
            return
        tables = [lane.tables.get("layers0") for lane in lanes]
        if any(table is None or len(table) < self.options.looks for table in tables):
            return
        known = [table for table in tables if table is not None]
        names = [name for name in known[0].dtype.names or () if name not in ("step", "time")]
        if any((table.dtype.names or ()) != (known[0].dtype.names or ()) for table in known):
            return
        missing = [[bool(np.isnan(t[n]).all()) for n in names] for t in known]
        never = [
            name for name, each in zip(names, zip(*missing, strict=True), strict=True) if all(each)
        ]
        gaps = any(bool(np.isnan(table[name]).any()) for table in known for name in names)
        looks = min(len(table) for table in known)
        step = int(max(table["step"][0] for table in known))
        evidence = {"layers": never[:16], "unused": len(never), "of": len(names), "looks": looks}
        if never:
            at = _made(lanes[0], never)
            more = f" and {len(never) - _SHOWN} more" if len(never) > _SHOWN else ""
            yield self.about(
                lanes,
                step=step,
                rank=lanes[0].rank,
                what=f"{len(never)} of {len(names)} parameters have had no gradient on any rank on "
                f"{looks} steps that were looked at: "
                f"{', '.join(never[:_SHOWN])[:80]}{more}"
                f"{f' (made{spot(at)})' if at[1] else ''}",
                file=at[0],
                line=at[1],
                advice="unless a later stage uses them: remove them or let them take part in the "
                "loss; freeze them before DDP is made if they shall stay (requires_grad_(False)); "
                "then leave find_unused_parameters out",
                evidence=evidence,
            )
        elif not gaps and min(lane.last_step for lane in lanes) >= self.options.steps:
            yield self.about(
                lanes,
                step=step,
                rank=lanes[0].rank,
                what=f"find_unused_parameters=True, but all {len(names)} parameters got a gradient "
                f"on each of {looks} steps that were looked at",
                advice="leave find_unused_parameters out: DDP walks the graph of every step for it",
                confidence=0.6,
                evidence=evidence,
            )


def _made(lane: RankLane, names: Sequence[str]) -> Origin:
    """The line that makes the first of these parameters that one is known of."""
    lines = dict(zip(lane.layers, map(origin, lane.facts.parts), strict=False))
    return next((at for name in names if (at := lines.get(name, ("", 0)))[1]), ("", 0))
