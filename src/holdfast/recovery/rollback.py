"""Rollback: restores a run that skipping steps does not save; stops one that nothing saves.

    suspicion ─ old weights for one batch ─┬─ ordinary loss: the weights were damaged, stay
                                           └─ high loss: the data has changed, undo, new baseline

A rollback is tried on one batch before it is kept: a new stage of a curriculum looks like damage
until old weights see the new data. That is the batch of the last step once more, where the loop can
be given it again: the same data with both weights, and a run that was well loses nothing. The loop
goes on with the next data, so the data that did the damage is skipped.

The level of a loss is evidence only where it can be compared over time (``probes/comparable.py``).
Elsewhere a suspicion is recorded and nothing is done, unless the user's policy says so.

With several ranks whatever follows is done by all of them after the same step (``together``).

What comes back after the last rollback of the budget is beyond the snapshots, which are some steps
old: the best state by validation is restored from its checkpoint, with a lower learning rate.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from types import FrameType
from typing import Any

from torch.optim import Optimizer

from ..config import Settings
from ..errors import Stopped
from ..policy import Decision, Policy
from ..probes.baseline import NORM, SKIPS
from ..probes.batches import Batch
from ..probes.loss import Losses
from ..probes.step_record import StepRecord
from ..suspicion import LOOK, DamageWatch, Suspicion
from .checkpoints import AutomaticCheckpoints
from .live_state import LiveState
from .restoring import Restoring
from .snapshots import Snapshot, Snapshots
from .together import (
    BEST,
    CLIP,
    END,
    LOWER,
    OUTLIERS,
    PACE,
    ROLLBACK,
    SAVE,
    STOP,
    Together,
    asked_for,
)
from .training import Guarded, Training
from .trial import Replay, Trial, all_finite, clearly_better, read_loss, was_skipped

# Trouble within this many steps of a rollback is not another bad batch: it did not help.
_AGAIN = 200
_ASK = 8


class Recovery:
    """Snapshots, rollbacks and the end of the budget, for all optimizers of this process."""

    def __init__(
        self,
        settings: Settings,
        training: Training,
        policy: Policy,
    ) -> None:
        self.live = LiveState(training)
        self.restoring = Restoring(settings.rollback, training, self.live)
        why_not = "samples in quarantine are skipped" if settings.quarantine.skip else ""
        self.checkpoints = AutomaticCheckpoints(settings.checkpoint, training, self.live, why_not)
        self._settings = settings
        self._training = training
        self._policy = policy
        self.snapshots = Snapshots(settings.rollback, least=1 if self.checkpoints.wanted else 0)
        self.together = Together(training, self.snapshots)
        self._troubles: dict[int, DamageWatch] = {}
        # With a decision that was made already: to the best state.
        self._ordered: tuple[Guarded, Suspicion, Decision | None] | None = None
        self._ending: tuple[str, Decision, int] | None = None
        self._best_left = settings.rollback.best
        self._trial: Trial | None = None
        self._last = {"rollback": -_AGAIN, "lowered": -_AGAIN}
        self.replay = Replay()
        self.look_at = 0.0
        """The step at which it is asked again what is due."""
        self._epoch = 0
        self.attentive = False
        self._level = math.inf

    # ------------------------------------------------------------------ what is known

    def concerns(self, record: StepRecord) -> bool:
        """Whether a step must be told: few of a run that is well, all of one that is not."""
        return (
            self.attentive
            or record.outlier != 0
            or record.bad
            or record.step % LOOK == 0
            or record.row["param_bad"] > 0
        )

    def known(self, guard: Guarded, record: StepRecord) -> None:
        """The numbers of a step are on the host."""
        row = record.row
        self.replay.loss = row["loss"]
        several = self.together.begin()
        if guard.outliers.known(record):
            on = guard.outliers.exploding
            why = "a gradient norm far above its baseline"
            if not on:
                used = "such norms are frequent in this run"
                why = used if record.outlier else "norms are back at their baseline"
            data = {"opt": guard.index, "on": on, "limit": row["norm_limit"], "why": why}
            if several:
                self.together.ask(CLIP, data, hasty=on)
            else:
                self._training.record_at("clipping", record.step, data)
        patience = self._settings.spike.patience
        trouble = self._troubles.setdefault(guard.index, DamageWatch(patience, SKIPS))
        skipped = record.bad or record.wild
        if skipped and record.told_to:
            self._policy.passes_over(record.step)
        elif skipped:
            self._ask(record)
        if record.outlier & NORM and self._policy.does("OPT002", "lower_lr"):
            self._lower(guard, record)
        found = trouble.saw(
            record.step, row, bad=record.bad, skipped=skipped, ordered=record.told_to
        )
        if record.bad and trouble.in_vain:
            found = _not_in_vain(found, trouble, record)
        elif found is not None and found.why == "nonfinite":
            found = replace(found, cause=_cause(record))
        if found is not None and found.cause == "NUM005":
            found = None  # older weights do not mend the data
        if not math.isnan(row["loss_usual"]):
            self._level = row["loss_usual"]
        if found is not None and self._trial is None and self._ordered is None:
            if found.code == "OPT001" and record.step - self._last["rollback"] < _AGAIN:
                found = replace(found, code="OPT003")
            if not self._may_act(found):
                self._only_observe(guard, found)
            elif several:
                self._ask_all(guard, found)
            else:
                self._ordered = guard, found, None
        elif trouble.lasting:
            self._new_level(guard, trouble, record.step, trouble.usual, row["loss"])
        clipping = any(one.outliers.clipping for _, one in self._training.guards())
        self.attentive = clipping or not self._quiet()
        if several and self._training.comparability.holds != self._training.comparability.agreed:
            self.together.ask(OUTLIERS, {}, hasty=False)

    def _ask_all(self, guard: Guarded, found: Suspicion) -> None:
        """Ask the other ranks whether the weights are to blame."""
        rule = self._policy.rule(found.code)
        if "stop" in rule.do:
            self._ending = found.code, self._policy.allow(found.code, found.step), found.step
        elif not self._policy.rests(rule.on, found.step):
            for kind in {ROLLBACK, BEST} & {*rule.do}:
                self.together.ask(kind, asked_for(found, guard.index, asked=rule.asked))

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
        about = {"opt": guard.index, "code": found.code, "first": found.first}
        losses = {"loss": found.loss, "usual": found.usual}
        refused = {"instead": list(rule.do), "why": self._training.comparability.why}
        self._training.record_at("observed", found.step, {**about, **losses, **refused})

    def _ask(self, record: StepRecord) -> None:
        """A step was skipped: decide whether that may go on."""
        code = _code(record) if record.bad else "OPT002"
        decision = self._policy.allow(code, record.step)
        if decision.stop:
            self._ending = code, decision, record.step

    def _lower(self, guard: Guarded, record: StepRecord) -> None:
        """Lower the learning rate after outlier norms; once for those close together."""
        if record.step - self._last["lowered"] < _AGAIN:
            return
        self._last["lowered"] = record.step
        norm, usual = record.row["grad_norm"], record.row["norm_usual"]
        data = {"opt": guard.index, "norm": norm, "usual": usual}
        if self.together.begin():
            self.together.ask(LOWER, data)
        else:
            self._lower_rates(data, record.step)

    def _lower_rates(self, data: Mapping[str, Any], step: int) -> None:
        factor = self.restoring.lower_rates()
        self._training.record_at("lowered_lr", step, {**data, "factor": factor})

    def _new_level(
        self, guard: Guarded, trouble: DamageWatch, step: int, before: float, after: float
    ) -> None:
        guard.outliers.learn_anew()
        trouble.new_level()
        data = {"opt": guard.index, "before": before, "after": after}
        self._training.record_at("level", step, data)

    def new_task(self, step: int) -> None:
        """Something else is learned from here on: a jump of the loss is meant."""
        for _, guard in self._training.guards():
            guard.outliers.forget()
        self._troubles.clear()
        self._training.record_at("new_task", step, {})

    # ------------------------------------------------------------------ at a boundary

    def rests(self, step: int) -> bool:
        """Whether nothing is suspected, ordered or due after this step; asked for every batch."""
        return step < self.look_at and self.quiet

    @property
    def quiet(self) -> bool:
        """Whether nobody wants anything done between two steps, but for what comes with time."""
        wanted = self._ordered is not None or self._ending is not None
        several = self.together.agreement is not None
        return not (wanted or several or self._training.has_orders)

    def due(self, step: int) -> bool:
        """Whether anything is to be done between this step and the next."""
        if self._ordered is not None or self._ending is not None or self._training.has_orders:
            return True
        if self.together.due(step):
            return True
        if step < self.look_at:
            return False
        at = self.snapshots.next_at(step)
        # Room that is being made and the clock are asked about now and then.
        self.look_at = min(at, self.checkpoints.next_step, step + _ASK)
        return step >= at or bool(self.checkpoints.due(step))

    @property
    def suspects(self) -> bool:
        """Whether older weights are about to be tried."""
        if self._ordered is not None and self._ordered[2] is None:
            return True
        return self.together.goes_back

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
            self._obey(order, step)
        if self.together.due(step) and self._act_together(step, fed, batches, at, steps):
            return
        for refused in self.together.tell(step):
            if refused.kind == END:
                self.together.ends_by(refused.facts["signal"], None)
            if refused.kind == STOP:  # a launcher ends the others when this one ends
                self._stop(*_stopping(refused.facts), step, self._last_good(refused.facts["code"]))
        if self._ending is not None:
            self._end()
        if self._ordered is not None and self._trial is None:
            (guard, suspicion, decision), self._ordered = self._ordered, None
            if decision is None:
                self._go_back(guard, suspicion, step, fed, batches)
            else:
                self._restore_best(guard, suspicion, decision, step)
            return
        if self._trial is not None or not self._quiet() or self.together.busy:
            return
        # While the loop has a batch for the second time, one that is due waits.
        save = self.checkpoints.due(step) if at is not None or not fed else ""
        if save and self.together.begin():
            if self._training.rank == 0:  # one clock for all
                self.together.ask(SAVE, {"kind": save}, hasty=False)
            save = ""
        taken = self._take(step) if save or self.snapshots.due(step) else None
        newest = self.snapshots.newest()
        if save and newest is not None:
            fresh = at if newest is taken else None
            self.checkpoints.save(newest, save, at=fresh, steps=steps)

    def _end(self) -> None:
        """Stop the run; with several ranks they all do."""
        assert self._ending is not None
        code, decision, step = self._ending
        question = {"code": code, "why": decision.why, "first": self._began(step)}
        if not self.together.begin() or not self.together.ask(STOP, question):
            self._stop(code, decision, step, self._last_good(code))
        self._ending = None

    def _act_together(
        self,
        step: int,
        fed: bool,
        batches: Sequence[Batch],
        at: FrameType | None,
        steps: int,
    ) -> bool:
        """Do what ranks have agreed on, if this is the step for it; True when that was all."""
        kept = [one.step for one in self.snapshots.taken() if one.step < self._began(1 << 62)]
        mine = {"again": bool(batches), "calm": self._quiet(), "kept": kept}
        met = self.together.arrive(step, mine)
        if met is None:
            return False
        (agreed, every), training = met, self._training
        kind, facts, asked_by = agreed.question.kind, agreed.facts, agreed.question.rank
        guards = {guard.index: guard for _, guard in training.guards()}
        if kind == STOP:
            by = f" (asked for by rank {asked_by})"
            self._stop(*_stopping(facts, by), step, self.snapshots.of(facts["to"]))
        elif kind == ROLLBACK:
            again = batches if all(one["again"] for one in every) else ()
            self._try_together(guards[facts["opt"]], facts, step, fed, again, asked_by)
            return True
        elif kind == BEST:
            found, code = _suspicion(facts), facts["code"]
            self._restore_best(guards[facts["opt"]], found, self._policy.allow(code, step), step)
            return True
        elif kind == CLIP:
            guards[facts["opt"]].outliers.agreed_to_clip = facts["on"]
            training.record_at("clipping", step + 1, {**facts, "asked_by": asked_by})
        elif kind == OUTLIERS:
            training.comparability.agreed = facts["skip"]
        elif kind == PACE:
            self.snapshots.pace.every = facts["every"]
        elif kind == LOWER:
            self._lower_rates({**facts, "asked_by": asked_by}, step + 1)
        elif kind == END:
            common = set.intersection(*(set(one["kept"]) for one in every))
            old = self.snapshots.of(max(common, default=-1))
            calm = all(one["calm"] for one in every)
            self.together.ends_by(facts["signal"], self._take(step) if calm else old)
        elif kind == SAVE and all(one["calm"] for one in every):
            taken = self._take(step)
            if taken is not None:
                self.checkpoints.save(taken, facts["kind"], at=at, steps=steps)
        return False

    def _try_together(
        self,
        guard: Guarded,
        facts: Mapping[str, Any],
        step: int,
        fed: bool,
        batches: Sequence[Batch],
        asked_by: int,
    ) -> None:
        """Begin a trial on all ranks, of the snapshot that all of them have."""
        found = _suspicion(facts)
        target = self.snapshots.of(facts["to"])
        assert target is not None
        self._troubles[guard.index].tried = True
        self._begin_trial(guard, found, target, step, fed, batches, asked_by)

    def _obey(self, order: Mapping[str, Any], step: int) -> None:
        """Take the action for a finding that became known after its step."""
        action, code = str(order.get("action")), str(order.get("code"))
        data = {"action": action, "code": code, "found": order.get("found"), "done": True}
        if self.together.begin() and action in (LOWER, SAVE):
            data["done"] = self.together.ask(action, {"kind": "asked"})
        elif action == "lower_lr":
            self.restoring.lower_rates()
        elif action == "checkpoint":
            self._take(step)
            newest = self.snapshots.newest()
            path = self.checkpoints.save(newest, "asked") if newest is not None else None
            data |= {"done": path is not None, "checkpoint": os.fspath(path or "")}
        elif action == "stop":
            why = str(order.get("why")) or f"the policy says stop on {code}"
            self._ending = code, Decision(do=("stop",), stop=True, why=why), step
        else:
            data |= {"done": False, "why": "this action cannot be taken later"}
        self._training.record_at("action", step, data)

    @property
    def awaits_step(self) -> bool:
        """Whether the next step must be told to us before and after it is taken."""
        waiting = self._trial is not None or self.snapshots.pending is not None
        return waiting or bool(self.restoring.stale)

    def epoch_begins(self) -> None:
        """A loader starts over: the RNG state of an earlier epoch would repeat its order."""
        self._epoch += 1

    @property
    def trying(self) -> bool:
        """Whether the weights are older ones, which are being tried on a batch."""
        return self._trial is not None

    @property
    def calm(self) -> bool:
        """Whether nothing is suspected of having damaged the weights."""
        return self._quiet()

    def _quiet(self) -> bool:
        return all(trouble.first < 0 for trouble in self._troubles.values())

    def _take(self, step: int) -> Snapshot | None:
        if self.live.changed():
            self.snapshots.clear()
        taken = self.snapshots.take(self.live.training_state(), step, self._level, self._epoch)
        if self.snapshots.why_not:
            self._training.not_covered("rolling back", self.snapshots.why_not)
        if self.snapshots.pace.too_often:
            self.together.ask(PACE, {}, hasty=False)
        return taken

    def leaves(self, optimizer: Optimizer, step: int, *, last: bool) -> None:
        """An optimizer is about to be freed; ``last``: it took part in the last step.

        Its state cannot be had any more when the run ends with an error later, so it is copied.
        """
        newest = self.snapshots.newest()
        wanted = last and self._settings.checkpoint.at_end and not self.live.many_stages
        if wanted and not self.trying and (newest is None or newest.step < step):
            state = self.live.leaving(optimizer)
            if state is not None:
                taken = self.snapshots.take(state, step, self._level, self._epoch)
                if taken is not None:
                    taken.wait()  # its memory will be somebody else's in a moment
        self.live.left(optimizer)

    def _go_back(
        self,
        guard: Guarded,
        suspicion: Suspicion,
        step: int,
        fed: bool,
        batches: Sequence[Batch],
    ) -> None:
        rule = self._policy.rule(suspicion.code)
        if "stop" in rule.do:
            decision = self._policy.allow(suspicion.code, step)
            self._stop(suspicion.code, decision, step, self._last_good(suspicion.code))
        if guard.detect_only or self._policy.rests(rule.on, step):
            return
        if "restore_best" in rule.do:
            self._restore_best(guard, suspicion, self._policy.allow(suspicion.code, step), step)
        if "rollback" not in rule.do:
            return
        if self.live.changed():
            self.snapshots.clear()
        if suspicion.code == "OPT003":
            target = self.snapshots.best()
        else:
            target = self.snapshots.before(suspicion.first - 1)
        if (target is None or not all_finite(target)) and rule.best:
            decision = self._policy.allow(suspicion.code, step)
            lower = replace(decision, do=(*decision.do, "lower_lr"))
            self._restore_best(guard, suspicion, lower, step)
            return
        if target is None or not all_finite(target):
            self._training.not_covered(
                "rolling back", f"no good snapshot was taken before step {suspicion.first}"
            )
            return
        self._begin_trial(guard, suspicion, target, step, fed, batches)

    def _begin_trial(
        self,
        guard: Guarded,
        suspicion: Suspicion,
        target: Snapshot,
        step: int,
        fed: bool,
        batches: Sequence[Batch],
        asked_by: int | None = None,
    ) -> None:
        began = time.perf_counter()
        kept = self.snapshots.aside(self.live.training_state(), step)
        target.held += 1
        self.restoring.put_back(target.state(), rng_state=fed and target.epoch == self._epoch)
        ms = (time.perf_counter() - began) * 1e3
        self._trial = Trial(guard, suspicion, target, kept, step - target.step, ms, asked_by)
        if suspicion.why == "loss":
            self._trial.before = self.replay.begin(batches)
        if suspicion.why == "weights":
            # Such weights are worthless: no trial. The event belongs before its row.
            self._settle_trial(math.nan, step + 1)

    # ------------------------------------------------------------------ the trial

    def before_step(self, guard: Guarded, losses: Losses) -> bool:
        """The loss of the trial batch is known; True when the step must not be taken."""
        self.snapshots.wait()
        if guard.index in self.restoring.stale:
            self.restoring.stale.discard(guard.index)
            return True
        trial = self._trial
        if trial is None or trial.guard is not guard:
            return False
        trial.tried = read_loss(losses)
        if self.replay.running:
            # A batch that was used before is only looked at.
            trial.replayed = self._training.iteration
        if trial.asked_by is None:
            keep = clearly_better(trial.suspicion, trial.tried, trial.before)
        else:
            keep, trial.tried, trial.before = self.together.verdict(
                trial.suspicion, trial.tried, trial.before
            )
        trial.failed = not keep
        # Where gradients were not finite, those of the old weights have to be seen as well.
        if not trial.failed and trial.suspicion.why != "nonfinite":
            # The row of a step that is only looked at says nothing: told with the next one.
            self._settle_trial(trial.tried, self._training.iteration + self.replay.running)
        return trial.failed or self.replay.running

    def after_step(self, guard: Guarded, record: StepRecord) -> None:
        """Undo a trial that failed."""
        trial = self._trial
        if trial is None or trial.tried is None or trial.guard is not guard:
            return
        if not trial.failed and not (record.bad or was_skipped(record)):
            self._settle_trial(trial.tried, record.step + 1)
            return
        self._trial = None
        trial.target.release()
        self.restoring.put_back(trial.kept.state(), everything=True)
        found = trial.suspicion
        data = {"opt": guard.index, "verdict": "data", "loss": found.loss, "usual": found.usual}
        # Recorded with the next step: the row of this one has been written.
        step = record.step + 1
        self._training.record_at("trial", step, {**data, "tried": trial.tried, **trial.story()})
        if found.cause:
            self._troubles[guard.index].in_vain[found.cause] = record.step
        if found.why == "loss":
            self._new_level(guard, self._troubles[guard.index], step, found.usual, found.loss)

    def _settle_trial(self, tried: float, step: int) -> None:
        """The old weights are the better ones: stay with them."""
        trial, self._trial = self._trial, None
        assert trial is not None
        trial.target.release()
        found = trial.suspicion
        decision = self._policy.allow(found.code, step)
        if "restore_best" in decision.do:
            # Between two steps: the gradients of this one belong to other weights.
            self._ordered = trial.guard, found, decision
            return
        if decision.stop:
            self._ending = found.code, decision, step
        factor = self.restoring.lower_rates() if "lower_lr" in decision.do else 1.0
        reset = "reset_moments" in decision.do
        if reset:
            for optimizer, _ in self._training.guards():
                optimizer.state.clear()
        if tried > found.limit:
            trial.guard.outliers.learn_anew()  # older weights, an older level
        self._went_back(
            trial.guard,
            found,
            step,
            {
                "to": trial.target.step,
                "steps": trial.undone,
                "tried": tried,
                **trial.story(),
                "lr_factor": factor,
                "moments_reset": reset,
                "ms": trial.ms,
                "left": decision.left,
            },
        )

    def restore_best(self, why: str) -> str:
        """Go back to the best state by validation, as the loop asks for; why it was not done.

        At most ``rollback.best`` times, beside those of the policy.
        """
        guards, step = self._training.guards(), self._training.iteration
        if not self._best_left:
            return f"that was done {self._settings.rollback.best} times (rollback.best)"
        if self._trial is not None or not guards:
            return "another rollback is under way"
        asked = Suspicion("", why, step, step, math.nan, math.nan, math.nan)
        left = self._best_left - 1
        if not self._go_to_best(guards[0][1], asked, step, lower=True, left=left):
            return "no best state by validation was saved yet, by all ranks"
        self._best_left, self._ordered = left, None
        return ""

    def _restore_best(
        self, guard: Guarded, found: Suspicion, decision: Decision, step: int
    ) -> None:
        """Go back to the best state by validation; stop the run where there is none."""
        if decision.stop:
            self._stop(found.code, decision, step, self._last_good(found.code))
        lower = "lower_lr" in decision.do
        if not self._go_to_best(guard, found, step, lower=lower, left=decision.left):
            why = f"{found.code} is beyond rollbacks, and there is no best state by validation yet"
            stop = replace(decision, do=("stop",), stop=True, why=why)
            self._stop(found.code, stop, step, self._last_good(found.code))

    def _go_to_best(
        self, guard: Guarded, found: Suspicion, step: int, *, lower: bool, left: int
    ) -> bool:
        """Restore the best state by validation; False where there is none."""
        # The row of this step may have been written.
        facts = self.restoring.put_back_best(
            step + 1, lower=lower, agreed=lambda at: self.together.same(f"best/{step}", at)
        )
        if facts is None:
            return False
        guard.outliers.learn_anew()  # other weights, another level
        self._went_back(guard, found, step + 1, {**facts, "left": left})
        return True

    def _went_back(
        self, guard: Guarded, found: Suspicion, step: int, data: Mapping[str, Any]
    ) -> None:
        self._last["rollback"] = step
        self.snapshots.forget_after(int(data["to"]))
        for trouble in self._troubles.values():
            trouble.calm()
        about = {"opt": guard.index, "code": found.code, "why": found.why, "first": found.first}
        losses = {"loss": found.loss, "usual": found.usual}
        self._training.record_at("rollback", step, {**about, **losses, **data})

    # ------------------------------------------------------------------ going on in another run

    @property
    def settled(self) -> bool:
        """Whether nothing is ordered, tried or suspected."""
        waiting = (self._ordered, self._ending, self._trial)
        busy = self.replay.more or self.restoring.stale
        return waiting == (None,) * 3 and self._quiet() and not busy

    def state(self) -> dict[str, Any]:
        """All that its next decisions depend on but the snapshots, as plain data.

        Only for a run that is settled.
        """
        return {
            "troubles": {index: asdict(watch) for index, watch in self._troubles.items()},
            "last": dict(self._last),
            "best_left": self._best_left,
            "epoch": self._epoch,
            "attentive": self.attentive,
            "level": self._level,
            "policy": self._policy.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` gave."""
        patience = self._settings.spike.patience
        for index, watch in state["troubles"].items():
            self._troubles[index] = DamageWatch(**{**watch, "patience": patience, "skips": SKIPS})
        self._last = dict(state["last"])
        self._best_left = state["best_left"]
        self._epoch = state["epoch"]
        self.attentive, self._level = state["attentive"], state["level"]
        self._policy.restore(state["policy"])

    # ------------------------------------------------------------------ the end

    def _stop(self, code: str, decision: Decision, step: int, good: Snapshot | None) -> None:
        """Stop the run after saving the last good state."""
        self._ending = None
        saved = ""
        try:
            saved = self.checkpoints.save_now(good, "stop") if good is not None else ""
        except Exception as error:
            self._training.failure("saving the last good state", error)
        data = {"code": code, "action": "stop", "why": decision.why, "checkpoint": saved}
        self._training.record_at("stop", step, data)
        place = f"; the last good state is in {saved}" if saved else ""
        raise Stopped(f"holdfast: stopped at step {step}: {decision.why}{place}")

    def _last_good(self, code: str) -> Snapshot | None:
        """The newest state from before the trouble; of a run that diverges the best one."""
        if code == "OPT003":
            return self.snapshots.best()
        return self.snapshots.before(self._began(1 << 62) - 1) or self.snapshots.newest()

    def _began(self, otherwise: int) -> int:
        """The step at which the present trouble began."""
        began = (trouble.first for trouble in self._troubles.values() if trouble.first >= 0)
        return min(began, default=otherwise)

    def close(self) -> None:
        """The run ends."""
        self.together.close()
        self.checkpoints.close()
        self.snapshots.close()
        if self.snapshots.count:
            self._training.record_at("snapshots", self._training.iteration, self.snapshots.story())


def _suspicion(facts: Mapping[str, Any]) -> Suspicion:
    """What all ranks were asked to go back for."""
    return Suspicion(**{name: facts[name] for name in Suspicion.__dataclass_fields__})


def _stopping(facts: Mapping[str, Any], by: str = "") -> tuple[str, Decision]:
    """What all ranks were asked to stop for."""
    return facts["code"], Decision(do=("stop",), stop=True, why=facts["why"] + by)


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
    found: Suspicion | None, trouble: DamageWatch, record: StepRecord
) -> Suspicion | None:
    """A suspicion, unless its cause was there with older weights a while ago and did not end."""
    step = record.step
    lasting = {cause: at for cause, at in trouble.in_vain.items() if step - at < _AGAIN}
    trouble.in_vain = dict.fromkeys(lasting, step)
    if found is None or found.why != "nonfinite":
        return found
    cause = _cause(record)
    return None if cause in lasting else replace(found, cause=cause)
