"""Judges the rows of a run as they become known: whether skipping and clipping are enough.

The level of a loss is evidence only where it can be compared over time (``probes/comparable.py``).
Elsewhere a suspicion is recorded and nothing is done, unless the user's policy says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..policy import Policy
from ..probes.baseline import NORM
from ..probes.step_record import StepRecord
from ..records.recovery import ClippingSwitched, LoweredRate, NewLossLevel, NewTask
from ..suspicion import DamageWatch, Suspicion
from .all_ranks import (
    BEST,
    CLIP,
    LOWER,
    OUTLIERS,
    ROLLBACK,
    AllRanks,
    asked_for,
    only_observed,
)
from .open_incidents import AGAIN, OpenIncidents
from .restoring import Restoring
from .stopping import StopReason
from .training import Guarded, Training


class RollbackDecision:
    """Says what must follow from a row; takes what can be taken at once, such as a lower rate.

    Args:
        training: of this process.
        policy: what follows from which finding.
        restoring: lowers the learning rate.
        all_ranks: what is agreed on with other ranks.
        open_incidents: what is wrong at present.
    """

    def __init__(
        self,
        training: Training,
        policy: Policy,
        restoring: Restoring,
        all_ranks: AllRanks,
        open_incidents: OpenIncidents,
    ) -> None:
        self._training, self._policy, self._all_ranks = training, policy, all_ranks
        self._restoring, self._open_incidents = restoring, open_incidents
        self.lowered = -AGAIN
        """The step after which the learning rate was lowered because of norms."""

    def known(
        self, guard: Guarded, record: StepRecord, *, free: bool
    ) -> tuple[StopReason | None, Suspicion | None]:
        """Why the run is to be stopped, and what it is to go back for; None for neither.

        Args:
            guard: of the optimizer.
            record: the step, whose numbers are on the host.
            free: whether no rollback is ordered or tried.
        """
        row, ending, back = record.row, None, None
        several = self._all_ranks.begin()
        if guard.outliers.known(record):
            self._tell_clipping(guard, record, several)
        watch = self._open_incidents.of(guard)
        skipped = record.bad or record.extreme
        if skipped and record.skip_ordered:
            self._policy.passes_over(record.step)
        elif skipped:
            ending = self._ask(record)
        if record.outlier & NORM and self._policy.does("OPT002", "lower_lr"):
            self._lower(guard, record, several)
        found = watch.saw(
            record.step, row, bad=record.bad, skipped=skipped, ordered=record.skip_ordered
        )
        if record.bad and watch.in_vain:
            found = _not_in_vain(found, watch, record)
        elif found is not None and found.why == "nonfinite":
            found = replace(found, cause=_cause(record))
        if found is not None and found.cause == "NUM005":
            found = None  # older weights do not mend the data
        if not math.isnan(row["loss_baseline"]):
            self._open_incidents.level = row["loss_baseline"]
        if found is not None and free:
            if found.code == "OPT001" and record.step - self._open_incidents.rolled_back < AGAIN:
                found = replace(found, code="OPT003")
            if not self._may_act(found):
                self._only_observe(guard, found)
            elif several:
                ending = self._ask_all(guard, found) or ending
            else:
                back = found
        elif watch.lasting and math.isfinite(row["loss"]):
            self.new_level(guard, record.step, watch.usual, row["loss"])
        comparability = self._training.comparability
        if several and comparability.holds != comparability.agreed:
            self._all_ranks.ask(OUTLIERS, {}, blocks_training=False)
        return ending, back

    def _tell_clipping(self, guard: Guarded, record: StepRecord, several: bool) -> None:
        """An explosion begins, or is over."""
        on = guard.outliers.exploding
        why = "a gradient norm far above its baseline"
        if not on:
            used = "such norms are frequent in this run"
            why = used if record.outlier else "norms are back at their baseline"
        limit = record.row["norm_limit"]
        switched = ClippingSwitched(opt=guard.index, on=on, limit=limit, why=why)
        if several:
            self._all_ranks.ask(CLIP, switched.to_dict(), blocks_training=on)
        else:
            self._training.record_at(record.step, switched)

    def _ask(self, record: StepRecord) -> StopReason | None:
        """A step was skipped: decide whether that may go on."""
        code = _code(record) if record.bad else "OPT002"
        decision = self._policy.allow(code, record.step)
        return StopReason(code, decision.why, record.step) if decision.stop else None

    def _ask_all(self, guard: Guarded, found: Suspicion) -> StopReason | None:
        """Ask the other ranks whether the weights are to blame."""
        rule = self._policy.rule(found.code)
        if "stop" in rule.do:
            why = self._policy.allow(found.code, found.step).why
            return StopReason(found.code, why, found.step)
        if not self._policy.rests(rule.on, found.step):
            for kind in {ROLLBACK, BEST} & {*rule.do}:
                self._all_ranks.ask(kind, asked_for(found, guard.index, asked=rule.asked))
        return None

    def _may_act(self, found: Suspicion) -> bool:
        """Whether the level of the loss is evidence here, or the user wants it to be."""
        # Numbers that are not finite are damage whatever the data is.
        comparable = found.why != "loss" or self._training.comparability.holds
        return comparable or self._policy.rule(found.code).asked

    def _only_observe(self, guard: Guarded, found: Suspicion) -> None:
        """Record a suspicion that nothing follows from."""
        rule = self._policy.rule(found.code)
        if not rule.acts:
            return
        why, instead = self._training.comparability.why, tuple(rule.do)
        observed = only_observed(found, guard.index, why, instead)
        self._training.record_at(found.step, observed)

    def _lower(self, guard: Guarded, record: StepRecord, several: bool) -> None:
        """Lower the learning rate after outlier norms; once for those close together."""
        if record.step - self.lowered < AGAIN:
            return
        self.lowered = record.step
        norm, usual = record.row["grad_norm"], record.row["norm_baseline"]
        facts = {"opt": guard.index, "norm": norm, "usual": usual}
        if several:
            self._all_ranks.ask(LOWER, facts)
        else:
            self.lower_rates(facts, record.step)

    def lower_rates(self, facts: Mapping[str, Any], step: int, asked_by: int | None = None) -> None:
        """Lower every learning rate, and record why.

        Args:
            facts: optimizer, norm and its baseline where a norm was the reason.
            step: of the event.
            asked_by: the rank that asked for it, where several do so together.
        """
        why = {name: facts[name] for name in ("opt", "norm", "usual") if name in facts}
        lowered = LoweredRate(factor=self._restoring.lower_rates(), asked_by=asked_by, **why)
        self._training.record_at(step, lowered)

    def new_level(self, guard: Guarded, step: int, before: float, after: float) -> None:
        """The data has changed: the loss has another level from here on."""
        guard.outliers.learn_anew()
        self._open_incidents.of(guard).new_level()
        level = NewLossLevel(opt=guard.index, before=before, after=after)
        self._training.record_at(step, level)

    def new_task(self, step: int) -> None:
        """Something else is learned from here on: a jump of the loss is meant."""
        for _, guard in self._training.guards():
            guard.outliers.forget()
        self._open_incidents.watches.clear()
        self._training.record_at(step, NewTask())


def _cause(record: StepRecord) -> str:
    """What tells one cause of non-finite steps from another: the code, and the layer to blame."""
    code = _code(record)
    return f"{code} {record.row['grad_layer']:.0f}" if code == "NUM002" else code


def _code(record: StepRecord) -> str:
    """The finding that a non-finite step belongs to."""
    # The row learns of it when it is written, after this.
    if any([batch.search() for batch in record.batches]):
        return "NUM005"
    return "NUM001" if record.loss_bad else "NUM002"


def _not_in_vain(
    found: Suspicion | None, watch: DamageWatch, record: StepRecord
) -> Suspicion | None:
    """A suspicion, unless its cause was there with older weights a while ago and did not end."""
    step = record.step
    lasting = {cause: at for cause, at in watch.in_vain.items() if step - at < AGAIN}
    watch.in_vain = dict.fromkeys(lasting, step)
    if found is None or found.why != "nonfinite":
        return found
    cause = _cause(record)
    return None if cause in lasting else replace(found, cause=cause)
