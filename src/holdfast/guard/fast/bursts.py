"""Where a burst of steps begins and ends (``burst``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...probes.loss import KEPT, Losses
from ...probes.ranks import ranks
from ...probes.timing import Phases
from .burst import BurstPart, Noted, StepBurst, Unwritten
from .burst_rows import BurstRows
from .device_fast_path import DevicePlan
from .parts import EngineParts

MOST = 8
"""Steps whose records may wait: rows from a device are a few steps late anyway."""
# Seconds that they may wait: batches are held meanwhile, in case one is bad, and where steps are
# long, host time does not matter. A guess.
_LATE = 0.16


class StepBursts:
    """Begins bursts where that is possible, and ends them.

    Args:
        parts: of the engine.
        phases: the clock of the loop.
    """

    def __init__(self, parts: EngineParts, phases: Phases) -> None:
        self.now: StepBurst | None = None
        """The part of the optimizer whose turn it is."""
        self._ring: list[StepBurst] = []
        self._writer, self._recovery = parts.writer, parts.recovery
        self._investigation, self._watchers = parts.investigation, parts.watchers
        self._finite_loss, self._scaling = parts.finite_loss, parts.scaling
        self._batch_source, self._phases = parts.batch_source, phases
        self._rows = BurstRows(parts.writer, parts.recovery)
        # Of several optimizers: how they have stepped in an iteration, with which losses the last
        # one did, and the last iteration in which all of them have.
        self._step, self._stepped = -1, list[BurstPart | None]()
        self._losses: Losses | None = None
        self._whole = -1

    def begin(self, plan: DevicePlan, losses: Losses) -> None:
        """After a step of the fast path: begin one where the next steps will be like it.

        ``losses``: those that it had.
        """
        if len(self._writer.training.registry) > 1:
            burst_parts = self._iteration(plan, losses)
        else:
            burst_part = self._burst_part(plan, losses, several=False)
            burst_parts = [] if burst_part is None else [burst_part]
        if burst_parts:
            self._begin(burst_parts)

    @property
    def burst_parts(self) -> Sequence[BurstPart]:
        """How its optimizers step."""
        return [part.burst_part for part in self._ring]

    def begin_again(self, burst_parts: Sequence[BurstPart]) -> None:
        """One is over by itself: begin another one of its kind."""
        self._whole = self._writer.training.iteration
        self._begin(burst_parts)

    def goes_with(self, optimizer: Any) -> bool:
        """Whether one of its optimizers is this one, which is about to be freed, or is gone."""
        return any(part.burst_part.plan.optimizer() in (None, optimizer) for part in self._ring)

    def _begin(self, burst_parts: Sequence[BurstPart]) -> None:
        left = self._left(burst_parts)
        if left < 2 or not self._ordinary(burst_parts):
            return
        ring: list[StepBurst] = []
        noted: list[Noted] = []
        scaler, comparability = self._scaling.scaler, self._writer.training.comparability
        scale = None if scaler is None else scaler._get_scale_async()
        for burst_part in burst_parts:
            plan, guard, optimizer = (
                burst_part.plan,
                burst_part.plan.guard,
                burst_part.plan.optimizer(),
            )
            terms = {"alone": True, "clipped": plan.clips, "may_skip": True}
            on = scale if plan.still_scaled else None
            asked = guard.outliers.question(plan.device, scale=on, **terms)
            buffers = guard.buffers.steady(plan.device)
            if optimizer is None or asked is None or buffers is None:
                return
            grad = optimizer.param_groups[0]["params"][0].dtype
            norm_meter = guard.norm_meter(plan.device)
            # As ``StepWindow.losses_decide`` says.
            decides = len(burst_parts) == 1 or burst_part.passes == 1
            repeat = norm_meter.repeat(
                decides, grad, burst_part.dtype, asked, scale, buffers.measured
            )
            if repeat is None:
                return
            about = buffers, self._scaling, self._batch_source, self._phases, comparability
            part = StepBurst(optimizer, burst_part, noted, left * len(burst_parts), repeat, *about)
            ring.append(part)
            if len(burst_parts) > 1:
                ring[len(ring) - 2].next, part.next = part, ring[0]
        self._ring, self.now = ring, ring[0]

    def _iteration(self, plan: DevicePlan, losses: Losses) -> Sequence[BurstPart]:
        """How several optimizers step, after the second iteration in a row in which all of them do.

        At any other time nothing.
        """
        training = self._writer.training
        if training.iteration != self._step:
            self._step, self._stepped = training.iteration, []
        before = self._stepped[-1] if self._stepped else None
        if losses is not self._losses:
            burst_part = self._burst_part(plan, losses, several=True)
        else:  # it has none of its own
            burst_part = None if before is None else before._replace(plan=plan, ready=(), places=())
        self._losses = losses
        self._stepped.append(burst_part)
        if len(self._stepped) < len(training.registry):
            return []
        whole, self._whole = self._whole, self._step
        burst_parts = [burst_part for burst_part in self._stepped if burst_part is not None]
        again = whole == self._step - 1 and len(burst_parts) == len(self._stepped)
        return burst_parts if again else []

    def _burst_part(self, plan: DevicePlan, losses: Losses, *, several: bool) -> BurstPart | None:
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
        return BurstPart(plan, ready, places, passes, dtype, device)

    def _left(self, burst_parts: Sequence[BurstPart]) -> int:
        """How many iterations there are until something is due."""
        writer, step = self._writer, self._writer.training.iteration
        most = min(
            MOST, self._phases.stays_idle // len(burst_parts), self._watchers.resumes - step - 1
        )
        most = min(most, _LATE / max(1e-6, writer.budget.pace * len(burst_parts)))
        if self._batch_source.loader_batches is None:
            most = min(most, self._recovery.look_at - step)
        every = writer.often(writer.memory_every)
        most = min(most, every - 1 - step % every)
        for burst_part in burst_parts:
            most = min(most, burst_part.plan.every - 1 - step % burst_part.plan.every)
        return int(most)

    def _ordinary(self, burst_parts: Sequence[BurstPart]) -> bool:
        writer, training, scaling = self._writer, self._writer.training, self._scaling
        memory, recovery, looks = training.memory, self._recovery, self._investigation
        several = len(burst_parts) > 1
        stepped: set[int] = set()
        for burst_part in burst_parts:
            plan, guard = burst_part.plan, burst_part.plan.guard
            if (
                not plan.fused
                or (plan.scaled and several)
                or scaling.scaler is not (scaling.last() if plan.scaled else None)
                or (guard.notes or guard.detect_only or guard.skip.pending)
                or guard.outliers.clipping
            ):
                return False
            stepped.add(guard.index)
        return (
            len(training.registry) == len(burst_parts)
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

    def end(self) -> StepBurst | None:
        """Whatever comes next is not part of it: write the rows of its steps."""
        burst, ring, self.now = self.now, self._ring, None
        self._ring = []
        if burst is not None:
            burst.give_up(self._writer)
            self._rows.close(ring)
            for part in ring:
                part.next = None  # nothing holds the other any more
        return burst

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
