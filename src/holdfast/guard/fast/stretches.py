"""Where a stretch of steps begins and ends (``stretch``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...probes.loss import KEPT, Losses
from ...probes.ranks import ranks
from ...probes.timing import Phases
from .device_fast_path import DevicePlan
from .parts import Parts
from .stretch import Noted, Stretch, Turn, Unwritten
from .stretch_rows import StretchRows

MOST = 8
"""Steps whose records may wait: rows from a device are a few steps late anyway."""
# Seconds that they may wait: batches are held meanwhile, in case one is bad, and where steps are
# long, host time does not matter. A guess.
_LATE = 0.16


class Stretches:
    """Begins stretches where that is possible, and ends them.

    Args:
        parts: of the engine.
        phases: the clock of the loop.
    """

    def __init__(self, parts: Parts, phases: Phases) -> None:
        self.now: Stretch | None = None
        """The part of the optimizer whose turn it is."""
        self._ring: list[Stretch] = []
        self._writer, self._recovery = parts.writer, parts.recovery
        self._investigation, self._watchers = parts.investigation, parts.watchers
        self._finite_loss, self._scaling = parts.finite_loss, parts.scaling
        self._feed, self._phases = parts.feed, phases
        self._rows = StretchRows(parts.writer, parts.recovery)
        # Of several optimizers: how they have stepped in an iteration, with which losses the last
        # one did, and the last iteration in which all of them have.
        self._step, self._stepped = -1, list[Turn | None]()
        self._losses: Losses | None = None
        self._whole = -1

    def begin(self, plan: DevicePlan, losses: Losses) -> None:
        """After a step of the fast path: begin one where the next steps will be like it.

        ``losses``: those that it had.
        """
        if len(self._writer.training.registry) > 1:
            turns = self._iteration(plan, losses)
        else:
            turn = self._turn(plan, losses, several=False)
            turns = [] if turn is None else [turn]
        if turns:
            self._begin(turns)

    @property
    def turns(self) -> Sequence[Turn]:
        """How its optimizers step."""
        return [part.turn for part in self._ring]

    def begin_again(self, turns: Sequence[Turn]) -> None:
        """One is over by itself: begin another one of its kind."""
        self._whole = self._writer.training.iteration
        self._begin(turns)

    def goes_with(self, optimizer: Any) -> bool:
        """Whether one of its optimizers is this one, which is about to be freed, or is gone."""
        return any(part.turn.plan.optimizer() in (None, optimizer) for part in self._ring)

    def _begin(self, turns: Sequence[Turn]) -> None:
        left = self._left(turns)
        if left < 2 or not self._calm(turns):
            return
        ring: list[Stretch] = []
        noted: list[Noted] = []
        scaler, comparability = self._scaling.scaler, self._writer.training.comparability
        scale = None if scaler is None else scaler._get_scale_async()
        for turn in turns:
            plan, guard, optimizer = turn.plan, turn.plan.guard, turn.plan.optimizer()
            terms = {"alone": True, "clipped": plan.clips, "may_skip": True}
            on = scale if plan.still_scaled else None
            asked = guard.outliers.question(plan.device, scale=on, **terms)
            buffers = guard.buffers.steady(plan.device)
            if optimizer is None or asked is None or buffers is None:
                return
            grad = optimizer.param_groups[0]["params"][0].dtype
            meter = guard.meter(plan.device)
            # As ``StepWindow.losses_decide`` says.
            decides = len(turns) == 1 or turn.passes == 1
            repeat = meter.repeat(decides, grad, turn.dtype, asked, scale, buffers.measured)
            if repeat is None:
                return
            about = buffers, self._scaling, self._feed, self._phases, comparability
            part = Stretch(optimizer, turn, noted, left * len(turns), repeat, *about)
            ring.append(part)
            if len(turns) > 1:
                ring[len(ring) - 2].next, part.next = part, ring[0]
        self._ring, self.now = ring, ring[0]

    def _iteration(self, plan: DevicePlan, losses: Losses) -> Sequence[Turn]:
        """How several optimizers step, after the second iteration in a row in which all of them do.

        At any other time nothing.
        """
        training = self._writer.training
        if training.iteration != self._step:
            self._step, self._stepped = training.iteration, []
        before = self._stepped[-1] if self._stepped else None
        if losses is not self._losses:
            turn = self._turn(plan, losses, several=True)
        else:  # it has none of its own
            turn = None if before is None else before._replace(plan=plan, ready=(), places=())
        self._losses = losses
        self._stepped.append(turn)
        if len(self._stepped) < len(training.registry):
            return []
        whole, self._whole = self._whole, self._step
        turns = [turn for turn in self._stepped if turn is not None]
        again = whole == self._step - 1 and len(turns) == len(self._stepped)
        return turns if again else []

    def _turn(self, plan: DevicePlan, losses: Losses, *, several: bool) -> Turn | None:
        """How an optimizer has stepped, where its losses are of one kind; otherwise None."""
        known, passes, ready = self._finite_loss.ready, losses.passes, list[Any]()
        places = losses.places if several else ()
        if not self._finite_loss.inside:
            keys = losses.places if several else range(1, min(passes, KEPT) + 1)
            ready = [known[key] for key in keys if key in known]
        elif not several:
            ready = _unwritten(losses)
        if len(ready) != passes or len({one[:2] for one in ready}) != 1:
            return None
        dtype, device = ready[0][:2]
        return Turn(plan, ready, places, passes, dtype, device)

    def _left(self, turns: Sequence[Turn]) -> int:
        """How many iterations there are until something is due."""
        writer, step = self._writer, self._writer.training.iteration
        most = min(MOST, self._phases.stays_idle // len(turns), self._watchers.resumes - step - 1)
        most = min(most, _LATE / max(1e-6, writer.budget.pace * len(turns)))
        if self._feed.ledger is None:
            most = min(most, self._recovery.look_at - step)
        every = writer.often(writer.memory_every)
        most = min(most, every - 1 - step % every)
        for turn in turns:
            most = min(most, turn.plan.every - 1 - step % turn.plan.every)
        return int(most)

    def _calm(self, turns: Sequence[Turn]) -> bool:
        writer, training, scaling = self._writer, self._writer.training, self._scaling
        memory, recovery, looks = training.memory, self._recovery, self._investigation
        several = len(turns) > 1
        stepped: set[int] = set()
        for turn in turns:
            plan, guard = turn.plan, turn.plan.guard
            if (
                not plan.fused
                or (plan.scaled and several)
                or scaling.scaler is not (scaling.last() if plan.scaled else None)
                or (guard.notes or guard.detect_only or guard.skip.armed)
                or guard.outliers.clipping
            ):
                return False
            stepped.add(guard.index)
        return (
            len(training.registry) == len(turns)
            and writer.stepped == stepped
            and not writer.suspicious
            and writer.scaler.policy is None
            and looks.idle
            and not (looks.alert or looks.replaying or looks.again)
            and not (recovery.awaits_step or recovery.replay.running or recovery.replay.again)
            and recovery.quiet
            and not (memory.lost or memory.held or memory.again or memory.split.news)
            and self._finite_loss.on
            and ranks() == 1
        )

    def end(self) -> Stretch | None:
        """Whatever comes next is not part of it: write the rows of its steps."""
        stretch, ring, self.now = self.now, self._ring, None
        self._ring = []
        if stretch is not None:
            stretch.give_up(self._writer)
            self._rows.close(ring)
            for part in ring:
                part.next = None  # nothing holds the other any more
        return stretch

    def drop(self) -> None:
        """It has failed: nothing is left of it."""
        if self.now is not None:
            self.now.disarm()
        self.now, self._ring = None, []


def _unwritten(losses: Losses) -> list[Unwritten]:
    """What is known of losses like that of a step with one pass; otherwise nothing."""
    if len(losses.values) != 1 or losses.passes != 1:
        return []
    loss = losses.values[0]
    return [(loss.dtype, loss.get_device(), None, None)]
