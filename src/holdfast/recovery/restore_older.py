"""Puts older states of the run in place: on trial, for good, or the best one by validation."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..config import Settings
from ..policy import Decision, Policy
from ..records.recovery import RolledBack, TrialResult
from ..suspicion import Suspicion
from .all_ranks import AllRanks, suspicion_of
from .live_snapshots import LiveSnapshots
from .open_incidents import OpenIncidents
from .restoring import Restoring
from .snapshots import Snapshot, Snapshots
from .stopping import Stopping, StopReason
from .training import Guarded, Training
from .trial import Trial, clearly_better


class RestoreOlder:
    """Goes back as the policy says, and records it.

    Args:
        settings: how often the loop may have the best state restored.
        training: of this process.
        policy: what follows from which finding.
        restoring: puts a state in place.
        taking: takes the present state, and finds the one to go back to.
        snapshots: of which those after an older state are worth nothing.
        stopping: ends the run where the policy says so.
        all_ranks: what is agreed on with other ranks.
        open_incidents: what is wrong at present.
    """

    def __init__(
        self,
        settings: Settings,
        training: Training,
        policy: Policy,
        restoring: Restoring,
        taking: LiveSnapshots,
        snapshots: Snapshots,
        stopping: Stopping,
        all_ranks: AllRanks,
        open_incidents: OpenIncidents,
    ) -> None:
        self._training, self._policy, self._restoring = training, policy, restoring
        self._taking, self._snapshots, self._stopping = taking, snapshots, stopping
        self._all_ranks, self._open_incidents = all_ranks, open_incidents
        self._may_skip = settings.guard.skip
        self._best = self.best_left = settings.rollback.best
        """How often the loop may have the best state restored, beside the policy."""

    def answer(self, guard: Guarded, found: Suspicion, step: int, *, fed: bool) -> Trial | None:
        """Do what the policy says about a suspicion; the trial that has begun, if one has."""
        code, rule = found.code, self._policy.rule(found.code)
        if "stop" in rule.do:
            self._stopping.stop(StopReason(code, self._policy.allow(code, step).why, step))
        # Older weights are tried on a batch, whose step may have to be skipped. No trial is needed
        # where the present ones are not finite.
        without_trial = found.why == "weights" and self._may_skip
        if (guard.detect_only and not without_trial) or self._policy.rests(rule.on, step):
            return None
        if "restore_best" in rule.do:
            self.to_best_or_stop(guard, found, self._policy.allow(code, step), step)
        if "rollback" not in rule.do:
            return None
        target = self._taking.before(found)
        if target is not None:
            return self.begin(guard, found, target, step, fed=fed)
        if rule.best:
            decision = self._policy.allow(code, step)
            lower = replace(decision, do=(*decision.do, "lower_lr"))
            self.to_best_or_stop(guard, found, lower, step)
        else:
            why = f"no good snapshot was taken before step {found.first}"
            self._training.not_covered("rolling back", why)
        return None

    # ------------------------------------------------------------------ the trial

    def begin(
        self,
        guard: Guarded,
        found: Suspicion,
        target: Snapshot,
        step: int,
        *,
        fed: bool,
        asked_by: int | None = None,
    ) -> Trial:
        """Put the weights of a snapshot in place; the present ones are kept aside.

        Args:
            guard: of the optimizer that is in trouble.
            found: the suspicion.
            target: the snapshot.
            step: the last one that was taken.
            fed: whether data comes from a loader.
            asked_by: the rank that asked for it, where several try it together.
        """
        began = time.perf_counter()
        kept = self._taking.aside(step)
        target.held += 1
        same_epoch = target.epoch == self._taking.epoch
        self._restoring.put_back(target.state(), rng_state=fed and same_epoch)
        ms = (time.perf_counter() - began) * 1e3
        return Trial(guard, found, target, kept, step - target.step, ms, asked_by)

    def begin_together(
        self, facts: Mapping[str, Any], step: int, *, fed: bool, asked_by: int
    ) -> Trial:
        """Begin a trial on all ranks, of the snapshot that all of them have."""
        guard, target = self._guard(facts), self._snapshots.of(facts["to"])
        assert target is not None
        self._open_incidents.of(guard).tried = True
        return self.begin(guard, suspicion_of(facts), target, step, fed=fed, asked_by=asked_by)

    def judge(self, trial: Trial, tried: float) -> float:
        """The loss of the batch that old weights are tried on is known; with others, their mean."""
        if trial.asked_by is None:
            keep = clearly_better(trial.suspicion, tried, trial.before)
        else:
            keep, tried, trial.before = self._all_ranks.verdict(
                trial.suspicion, tried, trial.before
            )
        trial.tried, trial.failed = tried, not keep
        return tried

    def undo(self, trial: Trial, step: int) -> None:
        """The old weights are not the better ones: put back what they replaced."""
        trial.target.release()
        self._restoring.put_back(trial.kept.state(), everything=True)
        found = trial.suspicion
        result = TrialResult(
            opt=trial.guard.index,
            verdict=trial.verdict,
            why=found.why,
            cause=found.cause.partition(" ")[0],
            loss=found.loss,
            usual=found.usual,
            tried=math.nan if trial.tried is None else trial.tried,
            before=trial.before,
            replayed=trial.replayed,
            asked_by=trial.asked_by,
        )
        self._training.record_at(step, result)

    def keep(self, trial: Trial, decision: Decision, tried: float, step: int) -> None:
        """The old weights are the better ones: stay with them."""
        trial.target.release()
        factor = self._restoring.lower_rates() if "lower_lr" in decision.do else 1.0
        reset = "reset_moments" in decision.do
        if reset:
            for optimizer, _ in self._training.guards():
                optimizer.state.clear()
        if tried > trial.suspicion.limit:
            trial.guard.outliers.learn_anew()  # older weights, an older level
        done = _rollback(trial.guard, trial.suspicion, trial.target.step, trial.undone)
        done = done.replace(
            tried=tried,
            before=trial.before,
            replayed=trial.replayed,
            asked_by=trial.asked_by,
            lr_factor=factor,
            moments_reset=reset,
            ms=trial.ms,
            left=decision.left,
        )
        self._went_back(done, step)

    # ------------------------------------------------------------------ beyond the snapshots

    def to_best_or_stop(
        self, guard: Guarded, found: Suspicion, decision: Decision, step: int
    ) -> None:
        """Go back to the best state by validation; stop the run where there is none."""
        if decision.stop:
            self._stopping.stop(StopReason(found.code, decision.why, step))
        lower = "lower_lr" in decision.do
        if not self._to_best(guard, found, step, lower=lower, left=decision.left):
            why = f"{found.code} is beyond rollbacks, and there is no best state by validation yet"
            self._stopping.stop(StopReason(found.code, why, step))

    def to_best_together(self, facts: Mapping[str, Any], step: int) -> None:
        """The same on all ranks."""
        decision = self._policy.allow(facts["code"], step)
        self.to_best_or_stop(self._guard(facts), suspicion_of(facts), decision, step)

    def to_best_for_loop(self, why: str, *, busy: bool) -> str:
        """The same as the loop asks for; why it was not done.

        ``busy``: older weights are being tried.
        """
        guards, step = self._training.guards(), self._training.iteration
        if not self.best_left:
            return f"that was done {self._best} times (rollback.best)"
        if busy or not guards:
            return "another rollback is under way"
        asked = Suspicion("", why, step, step, math.nan, math.nan, math.nan)
        left = self.best_left - 1
        if not self._to_best(guards[0][1], asked, step, lower=True, left=left):
            return "no best state by validation was saved yet, by all ranks"
        self.best_left = left
        return ""

    def _to_best(
        self, guard: Guarded, found: Suspicion, step: int, *, lower: bool, left: int
    ) -> bool:
        """Restore the best state by validation; False where there is none."""
        # The row of this step may have been written.
        best = self._restoring.put_back_best(
            lower=lower, agreed=lambda at: self._all_ranks.same(f"best/{step}", at)
        )
        if best is None:
            return False
        guard.outliers.learn_anew()  # other weights, another level
        done = _rollback(guard, found, best.step, step + 1 - best.step)
        done = done.replace(validation=best.value, lr_factor=best.lr_factor, ms=best.ms, left=left)
        self._went_back(done, step + 1)
        return True

    def _went_back(self, done: RolledBack, step: int) -> None:
        self._snapshots.forget_after(done.to)
        self._open_incidents.over(step)
        self._training.record_at(step, done)

    def _guard(self, facts: Mapping[str, Any]) -> Guarded:
        return next(guard for _, guard in self._training.guards() if guard.index == facts["opt"])


def _rollback(guard: Guarded, found: Suspicion, to: int, steps: int) -> RolledBack:
    """A rollback to a state so many steps ago, and what it was done for."""
    return RolledBack(
        opt=guard.index,
        code=found.code,
        why=found.why,
        first=found.first,
        loss=found.loss,
        usual=found.usual,
        to=to,
        steps=steps,
    )
