"""An optimizer is made, steps and leaves: each step is decided about before and concluded after."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...actions import foreign_step
from ...probes.ranks import ranks
from ...probes.readback import wait_for
from ...probes.replicas import EVERY as REPLICAS_EVERY
from ...probes.replicas import checksums
from ...probes.step_record import StepRecord
from ...probes.updates import EVERY as UPDATES_EVERY
from ..closures import closure_of, why_not_skippable, with_guard
from ..engine_state import EngineState
from ..fail_open import EnginePart, attempt, fail_open, out_of_reach
from ..grad_scaler import note_skip
from ..kernel_cost import EVERY as COST_EVERY
from ..optimizer_guard import OptimizerGuard, parameters_of
from ..step_records import StepRecords


class OptimizerHooks(EnginePart):
    """Hooks of optimizers and their schedules.

    Args:
        state: of the engine.
    """

    def __init__(self, state: EngineState) -> None:
        super().__init__(state)
        self._training, self._writer, self._recovery = state.training, state.writer, state.recovery
        self._batch_source, self._window, self._position = (
            state.batch_source,
            state.window,
            state.position,
        )
        self._scaling, self._finite_loss = state.scaling, state.finite_loss
        self._fast = state.fast
        self._investigation, self._watchers = state.investigation, state.watchers
        self._bad_steps, self._records = state.bad_steps, StepRecords(state)
        # By id: a step is open only while its optimizer is busy with it.
        self._open: dict[int, tuple[OptimizerGuard, StepRecord]] = {}

    # ------------------------------------------------------------------ its life

    @fail_open("model probe")
    def made(self, optimizer: Optimizer, models: Iterable[nn.Module] | None = None) -> None:
        """An optimizer exists: learn its layers and buffers before the first forward pass."""
        self._fast.close()
        self._fast.forget()
        self._training.origins.made(optimizer, sys._getframe())
        self._training.registry.of(optimizer, models)
        self._training.memory.made(self._training.models())

    @fail_open("parting snapshot")
    def leaves(self, optimizer: Optimizer) -> None:
        """An optimizer is about to be freed; the state after the last step would go with it."""
        # Another one is freed at any time, also while this one's step is being decided about.
        self._fast.leaves(optimizer)
        self._training.registry.buffers.let_go()
        whole = not out_of_reach() and id(optimizer) not in self._open
        last = whole and self._writer.stepped_last(self._training.registry.find(optimizer))
        self._recovery.leaves(optimizer, self._training.iteration, last=last)

    def scheduled(self, scheduler: Any) -> bool:
        """A learning-rate schedule is about to be stepped; False when it must not be."""
        if self._position.replaying or self._training.memory.held:
            return False
        if "recovery" not in self.off:
            # Without the wrapper: many step theirs after every step.
            try:
                self._recovery.live.saw_scheduler(scheduler)
            except Exception as error:
                self.failed("recovery", error)
        return True

    @property
    def busy(self) -> bool:
        """Whether an optimizer has begun a step that is not over."""
        return any(id(optimizer) in self._open for optimizer, _ in self._training.guards())

    # ------------------------------------------------------------------ its step

    def step_begins(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """``optimizer.step`` is about to run; may hand back other arguments."""
        closure = closure_of(args, kwargs) if kwargs or len(args) > 1 else None
        if out_of_reach():
            why = "optimizer.step is captured in a CUDA graph"
            attempt(self, "guard", self._training.not_covered, "guarding", why)
            return None
        if closure is not None:
            return self._with_closure(optimizer, closure, args, kwargs)
        self._finite_loss.inside = False
        self._decide(optimizer)
        if "guard" in self.off:
            attempt(self, "agreement", self._stand_in, optimizer)
        return None

    def _with_closure(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The arguments of ``step`` with a closure after which it is decided about the step."""
        guard = self._closure_guard(optimizer)
        self._finite_loss.inside = True
        if "guard" in self.off:
            attempt(self, "agreement", self._stand_in, optimizer)
        if guard is None:
            return None

        def decide() -> None:
            foreign_step.gradients_made(optimizer)
            self._fast.close()  # another optimizer may have stepped within the closure
            self.step_begins(optimizer, (), {})
            self._finite_loss.inside = True

        return with_guard(closure, decide, guard.only_detect, args, kwargs)

    def step_ends(self, optimizer: Optimizer) -> None:
        """``optimizer.step`` has returned."""
        # A step inside a compiled region was not opened: nothing of ours is traced there.
        if self._open:
            self._conclude(optimizer)
        self._finite_loss.inside = False

    def skipped_by(self, scaler: Any, optimizer: Optimizer) -> None:
        """A scaler has found its gradients non-finite, and has not called ``optimizer.step``."""
        guard = self._training.registry.of(optimizer)
        record, losses = self._records.begin(optimizer, guard), self._window.about()
        self._open.pop(id(optimizer), None)
        note_skip(record, scaler)
        record.skip_ordered = self._position.replaying or self._training.memory.lost
        guard.note_losses(record, losses)
        parameters = parameters_of(optimizer)
        if parameters:
            guard.buffers.passed_over(parameters[0].device, loss_bad=record.loss_bad)
        self._records.close(guard, record, losses)

    @fail_open("guard", ends="other")
    def _decide(self, optimizer: Optimizer) -> None:
        """By a fast path where one knows this optimizer, or by all that can be asked."""
        window = self._window
        losses, lost = window.losses, self._training.memory.lost
        scale = self._scaling.use() if self._scaling.scaler is not None else None
        if not lost:
            if not losses.passes:
                losses = window.previous
            opened = self._fast.open(optimizer, losses, window.losses_decide, scale, window.early)
            if opened is not None:
                self._open[id(optimizer)] = opened
                return
        self._fast.forget(optimizer)
        guard, parameters = self._training.registry.with_parameters(optimizer)
        if not guard.how:
            foreign_step.wrap_caller(optimizer, sys._getframe())
        record = self._records.begin(optimizer, guard)
        self._open[id(optimizer)] = guard, record
        writer, recovery = self._writer, self._recovery
        costed = record.step % writer.often(COST_EVERY) == 0
        began = writer.kernel_cost.begin() if costed else None
        losses = window.about()
        early, must_skip = window.early, self._position.replaying or lost
        if recovery.awaits_step and attempt(self, "recovery", recovery.before_step, guard, losses):
            must_skip = True
        self.phases.alone = alone = ranks() == 1
        if not alone and recovery.all_ranks.saw not in writer.listeners:
            writer.listeners.append(recovery.all_ranks.saw)
        guard.before(
            optimizer,
            parameters,
            record,
            losses,
            # One that was decided along is not what this step is about, or it would be open.
            early=None if early is None or early.decided else early,
            losses_decide=window.losses_decide,
            scale=scale,
            look_at_parameters=writer.wants_parameters(record),
            must_skip=must_skip,
            alone=alone,
        )
        if began is not None:
            writer.kernel_cost.end(record, began)
        measured = record.measured
        self.phases.runs(on_device=measured is not None and measured.flag.is_cuda)
        if record.step % writer.often(UPDATES_EVERY) == 0:
            record.weights = attempt(self, "update probe", guard.updates.before, parameters)
        if record.step % REPLICAS_EVERY == 0 and ranks() > 1:
            record.checksums = attempt(self, "replica probe", checksums, parameters)
        looks = self._investigation
        if looks.alert and measured is not None and wait_for(measured.flag):
            about = sys._getframe(), guard.index, record.step
            attempt(self, "investigation", looks.caught, *about)
        if record.bad or record.loss_bad:
            self._bad_steps.seen(sys._getframe(), guard, record)

    @fail_open("guard", ends="other")
    def _closure_guard(self, optimizer: Optimizer) -> OptimizerGuard | None:
        """The guard of an optimizer with a closure; None where the step is only observed."""
        guard = self._training.registry.of(optimizer)
        why = why_not_skippable(optimizer, earlier_passes=self._window.losses.passes)
        if why:
            guard.only_detect(why)
        if guard.detect_only:
            record = self._records.begin(optimizer, guard)
            record.late = True
            self._open[id(optimizer)] = guard, record
            return None
        return guard

    def _stand_in(self, optimizer: Optimizer) -> None:
        """Without the guard of this rank the others still wait for its numbers in every step."""
        guard = self._training.registry.find(optimizer)
        if guard is not None and guard.whole is not None:
            guard.whole.stand_in()

    @fail_open("guard", ends="optimizer")
    def _conclude(self, optimizer: Optimizer) -> None:
        guard, record = self._open.pop(id(optimizer), (None, None))
        if record is None or guard is None:
            return
        losses = self._window.losses
        if not losses.passes:
            losses = self._window.previous
        if record.is_ordinary:
            guard.buffers.keep()
            self._records.close(guard, record, losses)
            return
        if record.late:
            # Weights that are bad now were bad before it, where the step before was bad already.
            look = self._writer.suspicious
            guard.measure_late(optimizer, record, losses, look_at_parameters=look)
            if record.bad or record.loss_bad:
                self._bad_steps.seen(sys._getframe(), guard, record)
        began = self._writer.kernel_cost.begin() if record.cost_events else None
        guard.after(optimizer, record)
        if began is not None:
            self._writer.kernel_cost.end(record, began)
        if record.measured is None and self._batch_source.rng is not None and record.skipped:
            torch.random.default_generator.set_state(self._batch_source.rng)
        on_device, planned = record.measured is not None, record.planned
        self._records.close(guard, record, losses)
        self._fast.learn(optimizer, guard, record, planned=planned, on_device=on_device)
