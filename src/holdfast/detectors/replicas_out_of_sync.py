"""RNK001: ranks that train one model have different weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..types import Finding, Severity
from ._lines import CostlyLine
from ._ranks import (
    DDP,
    FSDP,
    Origin,
    RankDetector,
    RankLane,
    named,
    replicas,
    same_model,
    side_by_side,
    spot,
)

_SHOWN = 4
# The attribute of a wrapper that is the model itself.
_PAST = "module"


class ReplicasOutOfSync(RankDetector):
    """Ranks that train one model have different weights: replicas are out of sync.

    What it detects:
        Weights that are not the same bit for bit on all ranks, compared on one step in 64, with the
        step since which, the ranks and the layers. Under DDP always; without DDP where models have
        the same layers and losses differ from rank to rank (no process group, sharded parameters,
        models of different layers and ranks with equal losses are left alone).

    Why it matters:
        DDP averages gradients, not weights. Replicas that differ once stay different: the gradient
        is that of no model, and the checkpoint of rank 0 is one of several models.

    Evidence:
        ``ranks`` compared and ``odd`` the ones that differ from most others; ``equal_until``: the
        last compared step on which all were equal, -1 for none; ``layers``: names of those that
        differ, and ``differ`` their number ``of`` all; ``gradients``: whether gradients differ too;
        ``wrapper``: ``ddp`` or empty.

    Usual causes:
        - No DDP at all, or ``model.module(x)`` in place of ``model(x)``: gradients are never
          averaged.
        - Weights are loaded, initialised or clamped after DDP was made, on one rank only.
        - ``no_sync()`` stays on at the last micro-batch.
        - Random numbers or the rank decide about an update (dropout in the optimizer, stochastic
          depth of a parameter list).

    What to do:
        1. Wrap the model: ``DistributedDataParallel(model)``, and call the wrapped one.
        2. Load and initialise before wrapping; afterwards change weights on all ranks alike.
        3. Go back to a checkpoint from before the step that is named.

    False alarms:
        Ranks that train models of the same layers apart on purpose, in one process group: an
        ensemble, local SGD between two averages. Buffers are not compared: under DDP they differ
        after every forward pass.

    Cost:
        With several ranks one sum per parameter on one step in 64, on the device.

    Reproduce:
        ``holdfast run -m holdfast.faults.replicas_out_of_sync`` names the step after which the two
        ranks of ``python -m holdfast.faults.replicas_out_of_sync`` train different models.
    """

    code = "RNK001"
    name = "replicas_out_of_sync"
    severity = Severity.ERROR
    other_severities = ((Severity.WARNING, "where no wrapper keeps them equal"),)
    needs = ("loss", "grad_norm")
    since = "0.1"
    within = 64

    @dataclass(frozen=True, kw_only=True)
    class Options(RankDetector.Options):
        """Guesses, but for the comparison itself, which has no threshold."""

        apart: float = 1e-3
        """Relative difference of two gradient norms from which on gradients differ."""
        share: float = 0.5
        """Share of the steps on which losses or gradients must differ."""
        looks: int = 2
        """Comparisons that must differ where no DDP says that weights should be equal."""

    def compare(self, lanes: Sequence[RankLane]) -> Iterator[Finding]:
        """The first comparison on which weights differ."""
        if not same_model(lanes) or replicas(lanes) == FSDP:
            return
        if any(lane.facts.join for lane in lanes):
            return  # ranks take different numbers of steps: the same number is another step
        steps, sums = _checksums(lanes)
        if not len(steps):
            return
        unequal = np.any(sums != sums[:1], axis=(0, 2))
        wrapped = replicas(lanes) == DDP
        if unequal.sum() < (1 if wrapped else self.options.looks):
            return
        if not wrapped and not self._apart(lanes, "loss"):
            return  # the parts of one model, each on its rank
        yield self._finding(lanes, steps, sums, int(np.argmax(unequal)), wrapped)

    def _apart(self, lanes: Sequence[RankLane], name: str) -> bool:
        """Whether a column differs from rank to rank on most steps."""
        _, (values,) = side_by_side(lanes, name)
        with np.errstate(invalid="ignore"):
            spread = values.max(axis=0) - values.min(axis=0)
            differs = spread > self.options.apart * np.abs(values).max(axis=0)
        known = np.isfinite(spread)
        return bool(known.any()) and bool(differs[known].mean() >= self.options.share)

    def _finding(
        self,
        lanes: Sequence[RankLane],
        steps: NDArray[Any],
        sums: NDArray[Any],
        at: int,
        wrapped: bool,
    ) -> Finding:
        odd = [lanes[i].rank for i in _odd(sums[:, at])]
        which = np.flatnonzero(np.any(sums[:, at] != sums[:1, at], axis=0)).tolist()
        total, step = sums.shape[2], int(steps[at])
        before = int(steps[at - 1]) if at else -1
        gradients = self._apart(lanes, "grad_norm")
        names = [n for i, n in enumerate(lanes[0].layers) if i in which]
        part = "" if len(which) == total else f" in {', '.join(names[:_SHOWN])}"
        # Gradients of wrapped models are averaged unless these are called past their wrapper.
        called, past = _called(lanes[0]) if wrapped and gradients else (("", 0), False)
        how, advice = _cause(wrapped, gradients, before, odd, past=past)
        others = [lane.rank for lane in lanes if lane.rank not in odd]
        what = (
            f"the weights of {named(odd)} differ from those of {named(others)}{part} "
            f"({len(which)} of {total} layers): {how}"
        )
        return self.about(
            lanes,
            step=step,
            rank=odd[0],
            what=f"{what}{f' (called{spot(called)})' if called[1] else ''}",
            file=called[0],
            line=called[1],
            advice=advice,
            severity=self.severity if wrapped else Severity.WARNING,
            confidence=1.0 if wrapped else 0.7,
            evidence={
                "odd": odd,
                "equal_until": before,
                "layers": names[:16],
                "differ": len(which),
                "of": total,
                "gradients": gradients,
                "wrapper": DDP if wrapped else "",
            },
        )


def _called(lane: RankLane) -> tuple[Origin, bool]:
    """The line that calls the model for the longest time, past its wrapper if one shows it."""
    if lane.look is None:
        return ("", 0), False
    calls = sorted((line for line in lane.look.now.lines if line.mark == "model"), key=_seconds)
    for line in reversed(calls):
        for place in line.path:
            if any(_PAST in call.split(".") for call in place.calls):
                return (place.file, place.line), True
    return ((calls[-1].at.file, calls[-1].at.line) if calls else ("", 0)), False


def _seconds(line: CostlyLine) -> float:
    return line.seconds


def _checksums(lanes: Sequence[RankLane]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Steps on which all ranks looked, and what they saw: an array (ranks, steps, layers)."""
    tables = [lane.tables.get("weights0") for lane in lanes]
    known = [table for table in tables if table is not None]
    names = [table.dtype.names or () for table in known]
    nothing = np.zeros(0, dtype=np.int64), np.zeros((len(lanes), 0, 0))
    if len(known) < len(lanes) or len(set(names)) > 1:
        return nothing
    layers = [name for name in names[0] if name not in ("step", "time")]
    common = np.unique(known[0]["step"])
    for table in known[1:]:
        common = np.intersect1d(common, table["step"])
    sums: list[NDArray[Any]] = []
    for table in known:
        _, last = np.unique(table["step"][::-1], return_index=True)
        rows = table[::-1][last]
        rows = rows[np.isin(rows["step"], common)]
        sums.append(np.stack([rows[name] for name in layers], axis=-1))
    return common, np.stack(sums) if layers else nothing[1]


def _odd(sums: NDArray[Any]) -> list[int]:
    """Positions of the ranks that differ from most; of two the second one."""
    keys = [row.tobytes() for row in sums]
    most = Counter(keys).most_common(1)[0][0]
    return [i for i, key in enumerate(keys) if key != most]


def _cause(
    wrapped: bool, gradients: bool, before: int, odd: Sequence[int], *, past: bool
) -> tuple[str, str]:
    """How it came to this, and what to do; ``past``: a call past the wrapper was seen."""
    since = f"equal at step {before} for the last time" if before >= 0 else "from the start on"
    if wrapped and gradients and past:
        return (
            f"gradients are not averaged, {since}",
            "call the wrapped model, not model.module, for every forward pass, and end no_sync() "
            "before the last micro-batch",
        )
    if wrapped and gradients:
        return (
            f"gradients differ after backward, {since}",
            "see whether no_sync() ends before the last micro-batch, whether every forward pass "
            "calls the wrapped model, and what changes gradients on one rank alone before the step "
            "(noise, clipping, scaling)",
        )
    if wrapped and before < 0:
        return (
            "they were changed after DDP was made, before the first step",
            "load and initialise the weights before DistributedDataParallel(model), or on all "
            "ranks alike",
        )
    if wrapped:
        return (
            f"gradients are equal, {since}",
            f"look for code between steps {before} and {before + 64} that changes weights, or "
            f"steps the optimizer, under a condition that only {named(odd)} meets: do it on all "
            "ranks, or broadcast afterwards",
        )
    if gradients:
        return (
            f"no DDP, gradients are never averaged, {since}",
            "wrap the model before the loop: model = DistributedDataParallel(model); until then "
            "each rank trains a model of its own",
        )
    return (
        f"gradients are equal but weights are not, {since}",
        "give all ranks the same weights before the first step: the same torch.manual_seed, or "
        "torch.distributed.broadcast from rank 0",
    )
