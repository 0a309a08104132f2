"""Does what others ask for between two steps: the process that judges, and all ranks together."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from ..records.recovery import ClippingSwitched, OrderedAction
from .agreement import Accepted, Facts
from .all_ranks import CLIP, END, LOWER, OUTLIERS, PACE, SAVE, AllRanks
from .checkpoints import AutomaticCheckpoints
from .live_snapshots import LiveSnapshots
from .restoring import Restoring
from .rollback_decision import RollbackDecision
from .snapshots import Snapshots
from .stopping import StopReason
from .training import Training


class Orders:
    """Carries out what neither stops the run nor takes it back.

    Args:
        training: of this process.
        restoring: lowers the learning rate.
        rollback_decision: lowers it after outlier norms.
        taking: takes the state that is saved.
        snapshots: those that were taken.
        checkpoints: where they go.
        all_ranks: what is agreed on with other ranks.
    """

    def __init__(
        self,
        training: Training,
        restoring: Restoring,
        rollback_decision: RollbackDecision,
        taking: LiveSnapshots,
        snapshots: Snapshots,
        checkpoints: AutomaticCheckpoints,
        all_ranks: AllRanks,
    ) -> None:
        self._training, self._restoring, self._rollback_decision = (
            training,
            restoring,
            rollback_decision,
        )
        self._taking, self._snapshots, self._checkpoints = taking, snapshots, checkpoints
        self._all_ranks = all_ranks

    def obey(self, order: Mapping[str, Any], step: int) -> StopReason | None:
        """Take the action for a finding that became known after its step; the end, if it is one."""
        ending = None
        action, code = str(order.get("action")), str(order.get("code"))
        taken = OrderedAction(action=action, code=code, found=order.get("found"))
        if self._all_ranks.begin() and action in (LOWER, SAVE):
            taken = taken.replace(done=self._all_ranks.ask(action, {"kind": "asked"}))
        elif action == "lower_lr":
            self._restoring.lower_rates()
        elif action == "checkpoint":
            self._taking.take(step)
            newest = self._snapshots.newest()
            path = self._checkpoints.save(newest, "asked") if newest is not None else None
            taken = taken.replace(done=path is not None, checkpoint=os.fspath(path or ""))
        elif action == "stop":
            why = str(order.get("why")) or f"the policy says stop on {code}"
            ending = StopReason(code, why, step)
        else:
            taken = taken.replace(done=False, why="this action cannot be taken later")
        self._training.record_at(step, taken)
        return ending

    def agreed(
        self,
        agreed: Accepted,
        every: Sequence[Facts],
        step: int,
        at: FrameType | None,
        steps: int,
    ) -> None:
        """Do what all ranks do after this step.

        Args:
            agreed: what that is.
            every: what each rank has brought.
            step: the last one that was taken.
            at: where the loop asks for its next batch; None while it gets one again.
            steps: how many the run has made.
        """
        kind, facts, asked_by = agreed.proposal.kind, agreed.facts, agreed.proposal.rank
        no_incident = all(one["no_incident"] for one in every)
        if kind == CLIP:
            guards = {guard.index: guard for _, guard in self._training.guards()}
            switched = ClippingSwitched.from_dict(facts).replace(asked_by=asked_by)
            guards[switched.opt].outliers.agreed_to_clip = switched.on
            self._training.record_at(step + 1, switched)
        elif kind == OUTLIERS:
            self._training.comparability.agreed = facts["skip"]
        elif kind == PACE:
            self._snapshots.pace.every = facts["every"]
        elif kind == LOWER:
            self._rollback_decision.lower_rates(facts, step + 1, asked_by)
        elif kind == END:
            common = set.intersection(*(set(one["kept"]) for one in every))
            old = self._snapshots.of(max(common, default=-1))
            self._all_ranks.ends_by(
                facts["signal"], self._taking.take(step) if no_incident else old
            )
        elif kind == SAVE and no_incident:
            taken = self._taking.take(step)
            if taken is not None:
                self._checkpoints.save(taken, facts["kind"], at=at, steps=steps)
