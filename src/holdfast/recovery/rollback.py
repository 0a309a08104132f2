"""Rollback: restores a run that skipping steps does not save; stops one that nothing saves.

    suspicion ─ old weights for one batch ─┬─ ordinary loss: the weights were damaged, stay
                                           └─ high loss: the data has changed, undo, new baseline

A rollback is tried on one batch before it is kept: a new stage of a curriculum looks like damage
until old weights see the new data. That is the batch of the last step once more, where the loop can
be given it again: the same data with both weights, and a run that was well loses nothing. The loop
goes on with the next data, so the data that did the damage is skipped.

``rollback_decision`` says what is suspected; ``restore_older`` puts older states in place,
``stopping`` ends the run. With several ranks whatever follows is done by all of them after the
same step (``all_ranks``).

What comes back after the last rollback of the budget is beyond the snapshots, which are some steps
old: the best state by validation is restored from its checkpoint, with a lower learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from torch.optim import Optimizer

from ..config import Settings
from ..policy import Decision, Policy
from ..probes.batches import Batch
from ..probes.loss import Losses
from ..probes.step_record import StepRecord
from ..suspicion import LOOK, Suspicion
from .all_ranks import BEST, END, ROLLBACK, SAVE, STOP, AllRanks
from .checkpoints import AutomaticCheckpoints
from .damage import Damage
from .live_snapshots import LiveSnapshots
from .live_state import LiveState
from .open_incidents import OpenIncidents
from .orders import Orders
from .restore_older import RestoreOlder
from .restoring import Restoring
from .rollback_decision import RollbackDecision
from .snapshots import Snapshots
from .stopping import Stopping, StopReason
from .training import Guarded, Training
from .trial import RepeatedBatches, Trial, read_loss, was_skipped

_ASK = 8


class Recovery:
    """Snapshots, rollbacks and the end of the budget, for all optimizers of this process."""

    def __init__(self, settings: Settings, training: Training, policy: Policy) -> None:
        self.live = LiveState(training)
        self.restoring = Restoring(settings.rollback, training, self.live)
        why_not = "samples in quarantine are skipped" if settings.quarantine.skip else ""
        damage = Damage(self.live)
        about = training, self.live, damage
        self.checkpoints = AutomaticCheckpoints(settings.checkpoint, *about, why_not)
        self.snapshots = Snapshots(settings.rollback, least=1 if self.checkpoints.wanted else 0)
        self.all_ranks = AllRanks(training, self.snapshots, damage)
        self.open_incidents = OpenIncidents(settings.spike.patience)
        self._training, self._policy = training, policy
        shared = self.all_ranks, self.open_incidents
        self._taking = LiveSnapshots(
            *(settings, training, self.live, self.snapshots, *shared, damage)
        )
        self._rollback_decision = RollbackDecision(training, policy, self.restoring, *shared)
        self._stopping = Stopping(training, self.checkpoints, self.snapshots, *shared)
        self._back = RestoreOlder(
            *(settings, training, policy, self.restoring),
            *(self._taking, self.snapshots, self._stopping, *shared),
        )
        self._orders = Orders(
            *(training, self.restoring, self._rollback_decision, self._taking),
            *(self.snapshots, self.checkpoints, self.all_ranks),
        )
        # With a decision that was made already: to the best state.
        self._ordered: tuple[Guarded, Suspicion, Decision | None] | None = None
        self._ending: StopReason | None = None
        self._trial: Trial | None = None
        self.replay = RepeatedBatches()
        self.look_at = 0.0
        """The step at which it is asked again what is due."""
        self.attentive = False

    # ------------------------------------------------------------------ what is known

    def concerns(self, record: StepRecord) -> bool:
        """Whether a step must be told: few of a run that is well, all of one that is not."""
        odd = record.outlier != 0 or record.bad or record.row["param_bad"] > 0
        return odd or self.concerns_at(record.step)

    def concerns_at(self, step: int) -> bool:
        """Whether it must be told even where nothing is out of order."""
        return self.attentive or step % LOOK == 0

    def known(self, guard: Guarded, record: StepRecord) -> None:
        """The numbers of a step are on the host."""
        self.replay.loss = record.row["loss"]
        free = self._trial is None and self._ordered is None
        ending, found = self._rollback_decision.known(guard, record, free=free)
        if ending is not None:
            self._ending = ending
        if found is not None:
            self._ordered = guard, found, None
        clipping = any(one.outliers.clipping for _, one in self._training.guards())
        self.attentive = clipping or not self.open_incidents.none

    def new_task(self, step: int) -> None:
        """Something else is learned from here on: a jump of the loss is meant."""
        self._rollback_decision.new_task(step)

    # ------------------------------------------------------------------ at a boundary

    def rests(self, step: int) -> bool:
        """Whether nothing is suspected, ordered or due after this step; asked for every batch."""
        return step < self.look_at and self.quiet

    @property
    def quiet(self) -> bool:
        """Whether nobody wants anything done between two steps, but for what comes with time."""
        wanted = self._ordered is not None or self._ending is not None
        several = self.all_ranks.agreement is not None
        return not (wanted or several or self._training.has_orders)

    def due(self, step: int) -> bool:
        """Whether anything is to be done between this step and the next."""
        if self._ordered is not None or self._ending is not None or self._training.has_orders:
            return True
        if self.all_ranks.due(step):
            return True
        if step < self.look_at:
            return False
        at = self.snapshots.next_at(step)
        # Room that is being made and the clock are asked about now and then.
        self.look_at = min(at, self.checkpoints.next_step, step + _ASK)
        return step >= at or bool(self.checkpoints.due(step, self.snapshots.size))

    @property
    def suspects(self) -> bool:
        """Whether older weights are about to be tried."""
        if self._ordered is not None and self._ordered[2] is None:
            return True
        return self.all_ranks.goes_back

    def boundary(
        self,
        step: int,
        fed: bool,
        batches: Sequence[Batch] = (),
        at: FrameType | None = None,
        steps: int = 0,
    ) -> None:
        """Between two steps: take a snapshot, save one, roll back, or stop the run.

        Args:
            step: the last one that was taken.
            fed: whether data comes from a loader. A loop without one draws its data itself, and
                would draw the same again if the RNG state were restored.
            batches: those of the last step, where they can be handed out again.
            at: where the loop asks for its next batch; None while it gets one again.
            steps: how many the run has made.
        """
        for order in self._training.orders():
            self._ending = self._orders.obey(order, step) or self._ending
        if self.all_ranks.due(step) and self._act_together(step, fed, batches, at, steps):
            return
        for refused in self.all_ranks.tell(step):
            if refused.kind == END:
                self.all_ranks.ends_by(refused.facts["signal"], None)
            if refused.kind == STOP:  # a launcher ends the others when this one ends
                self._ending = None
                self._stopping.stop(StopReason(refused.facts["code"], refused.facts["why"], step))
        if self._ending is not None:
            ending, self._ending = self._ending, None
            self._stopping.end(ending)
        if self._ordered is not None and self._trial is None:
            (guard, found, decision), self._ordered = self._ordered, None
            if decision is not None:
                self._back.to_best_or_stop(guard, found, decision, step)
            elif trial := self._back.answer(guard, found, step, fed=fed):
                self._try(trial, step, batches)
            return
        if self._trial is not None or not self.open_incidents.none or self.all_ranks.busy:
            return
        # While the loop has a batch for the second time, one that is due waits.
        size = self.snapshots.size
        save = self.checkpoints.due(step, size) if at is not None or not fed else ""
        if save and self.all_ranks.begin():
            if self._training.rank == 0:  # one clock for all
                self.all_ranks.ask(SAVE, {"kind": save}, blocks_training=False)
            save = ""
        taken = self._taking.take(step) if save or self.snapshots.due(step) else None
        newest = self.snapshots.newest()
        if save and newest is not None:
            fresh = at if newest is taken else None
            self.checkpoints.save(newest, save, at=fresh, steps=steps)

    def _act_together(
        self,
        step: int,
        fed: bool,
        batches: Sequence[Batch],
        at: FrameType | None,
        steps: int,
    ) -> bool:
        """Do what ranks have agreed on, if this is the step for it; True when that was all."""
        began = self.open_incidents.began(1 << 62)
        kept = [one.step for one in self.snapshots.taken() if one.step < began]
        own = {"again": bool(batches), "no_incident": self.open_incidents.none, "kept": kept}
        met = self.all_ranks.arrive(step, own)
        if met is None:
            return False
        agreed, every = met
        kind, facts, asked_by = agreed.proposal.kind, agreed.facts, agreed.proposal.rank
        if kind == STOP:
            self._ending = None
            self._stopping.agreed(facts, step, asked_by)
        elif kind == ROLLBACK:
            trial = self._back.begin_together(facts, step, fed=fed, asked_by=asked_by)
            self._try(trial, step, batches if all(one["again"] for one in every) else ())
        elif kind == BEST:
            self._back.to_best_together(facts, step)
        else:
            self._orders.agreed(agreed, every, step, at, steps)
        return kind in (ROLLBACK, BEST)

    @property
    def awaits_step(self) -> bool:
        """Whether the next step must be told to us before and after it is taken."""
        waiting = self._trial is not None or self.snapshots.pending is not None
        return waiting or bool(self.restoring.stale)

    def epoch_begins(self) -> None:
        """A loader starts over: the RNG state of an earlier epoch would repeat its order."""
        self._taking.epoch += 1

    @property
    def trying(self) -> bool:
        """Whether the weights are older ones, which are being tried on a batch."""
        return self._trial is not None

    @property
    def no_incident(self) -> bool:
        """Whether nothing is suspected of having damaged the weights."""
        return self.open_incidents.none

    def leaves(self, optimizer: Optimizer, step: int, *, last: bool) -> None:
        """An optimizer is about to be freed; ``last``: it took part in the last step."""
        if last and not self.trying:
            self._taking.take_leaving(optimizer, step)
        self.live.left(optimizer)

    # ------------------------------------------------------------------ going back

    def _try(self, trial: Trial, step: int, batches: Sequence[Batch]) -> None:
        """Old weights are in place, for one batch."""
        self._trial, why = trial, trial.suspicion.why
        if why == "loss":
            trial.before = self.replay.begin(batches)
        if why == "weights":
            # Such weights are worthless: no trial. The event belongs before its row.
            self._settle(trial, math.nan, step + 1)

    def before_step(self, guard: Guarded, losses: Losses) -> bool:
        """The loss of the trial batch is known; True when the step must not be taken."""
        self.snapshots.wait()
        if guard.index in self.restoring.stale:
            self.restoring.stale.discard(guard.index)
            return True
        trial = self._trial
        if trial is None or trial.guard is not guard:
            return False
        if self.replay.running:
            # A batch that was used before is only looked at.
            trial.replayed = self._training.iteration
        tried = self._back.judge(trial, read_loss(losses))
        # Where gradients were not finite, those of the old weights have to be seen as well.
        if not trial.failed and trial.suspicion.why != "nonfinite":
            # The row of a step that is only looked at says nothing: told with the next one.
            self._settle(trial, tried, self._training.iteration + self.replay.running)
        return trial.failed or self.replay.running

    def after_step(self, guard: Guarded, record: StepRecord) -> None:
        """Undo a trial that failed."""
        trial = self._trial
        if trial is None or trial.tried is None or trial.guard is not guard:
            return
        if not trial.failed and not (record.bad or was_skipped(record)):
            self._settle(trial, trial.tried, record.step + 1)
            return
        self._trial = None
        # Recorded with the next step: the row of this one has been written.
        step, found = record.step + 1, trial.suspicion
        self._back.undo(trial, step)
        if found.cause:
            self.open_incidents.of(guard).in_vain[found.cause] = record.step
        if trial.verdict == "data":
            self._rollback_decision.new_level(guard, step, found.usual, found.loss)

    def _settle(self, trial: Trial, tried: float, step: int) -> None:
        """The old weights are the better ones: stay with them."""
        self._trial, found = None, trial.suspicion
        decision = self._policy.allow(found.code, step)
        if "restore_best" in decision.do:
            # Between two steps: the gradients of this one belong to other weights.
            trial.target.release()
            self._ordered = trial.guard, found, decision
            return
        if decision.stop:
            self._ending = StopReason(found.code, decision.why, step)
        self._back.keep(trial, decision, tried, step)

    def restore_best(self, why: str) -> str:
        """Go back to the best state by validation, as the loop asks for; why it was not done.

        At most ``rollback.best`` times, beside those of the policy.
        """
        refused = self._back.to_best_for_loop(why, busy=self._trial is not None)
        if not refused:
            self._ordered = None
        return refused

    # ------------------------------------------------------------------ going on in another run

    @property
    def settled(self) -> bool:
        """Whether nothing is ordered, tried or suspected."""
        waiting = (self._ordered, self._ending, self._trial)
        busy = self.replay.more or self.restoring.stale
        return waiting == (None,) * 3 and self.open_incidents.none and not busy

    def state(self) -> dict[str, Any]:
        """All that its next decisions depend on but the snapshots, as plain data.

        Only for a run that is settled.
        """
        return {
            "troubles": self.open_incidents.state(),
            "last": {
                "rollback": self.open_incidents.rolled_back,
                "lowered": self._rollback_decision.lowered,
            },
            "best_left": self._back.best_left,
            "epoch": self._taking.epoch,
            "attentive": self.attentive,
            "level": self.open_incidents.level,
            "policy": self._policy.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` gave."""
        self.open_incidents.restore(state["troubles"])
        self.open_incidents.level = state["level"]
        self.open_incidents.rolled_back = state["last"]["rollback"]
        self._rollback_decision.lowered = state["last"]["lowered"]
        self._back.best_left = state["best_left"]
        self._taking.epoch = state["epoch"]
        self.attentive = state["attentive"]
        self._policy.restore(state["policy"])

    def close(self) -> None:
        """The run ends."""
        self.all_ranks.close()
        self.checkpoints.close()
        self.snapshots.close()
        if self.snapshots.count:
            totals = self.snapshots.totals()
            self._training.record_at(self._training.iteration, totals)
