"""The hooks of the engine while a burst lasts: they stand in the place of the plain ones.

Each does what a step like the one before needs, and hands everything else to the plain hook.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ...actions import foreign_step
from ...probes.batches import HELD, LoaderBatches
from ...probes.step_record import StepRecord
from ..closures import closure_of, with_guard
from ..fail_open import EnginePart, FailsOpen, attempt, fail_open, out_of_reach
from ..norms_before_clip import Measured
from .burst import StepBurst
from .bursts import StepBursts
from .parts import EngineParts

PLACES = (
    *("fetch_begins", "fetched", "scaler_used", "scaler_begins", "backward_begins"),
    *("backward_ends", "clip_begins", "clip_ends", "step_begins", "step_ends"),
)
"""The hooks of the engine that are replaced."""


class BurstHooks(EnginePart):
    """What the hooks of a step do in a burst.

    Args:
        owner: of the switches and of the clock.
        parts: of the engine.
        bursts: know the one at work.
        plain: the hooks of the engine at any other time, by name.
        close: ends the burst.
        goes_on: begins another one like the one that is over by itself.
    """

    def __init__(
        self,
        owner: FailsOpen,
        parts: EngineParts,
        bursts: StepBursts,
        plain: Mapping[str, Callable[..., Any]],
        close: Callable[[], None],
        goes_on: Callable[[], None],
    ) -> None:
        super().__init__(owner)
        self._bursts, self._plain = bursts, plain
        self._close, self._goes_on = close, goes_on
        self._writer, self._training = parts.writer, parts.writer.training
        self._recovery, self._script = parts.recovery, parts.recovery.checkpoints.script
        self._last_state, self._watchers, self._batch_source = (
            parts.last_state,
            parts.watchers,
            parts.batch_source,
        )
        self._finite_loss, self._scaling = parts.finite_loss, parts.scaling
        self._bad_batches = parts.writer.training.bad_batches
        self._clip_order = parts.writer.training.registry.clip_order

    # ------------------------------------------------------------------ the batch

    def fetch_begins(self, iterator: Any) -> tuple[Any] | None:
        """The loop asks for the next batch; nobody holds on to the one before."""
        began, training = perf_counter(), self._training
        signals, script = self._last_state.signals, self._script
        loader_batches: Any = getattr(iterator, LoaderBatches.ATTRIBUTE, None)
        # Nobody wants anything but what comes with time.
        goes_on = (
            loader_batches is not None
            and training.iteration < self._recovery.look_at
            and not (signals is not None and signals.pending)
            and not self.off
        )
        try:
            if goes_on and script.on:
                goes_on = script.asks_again(iterator, training.iteration + 1)
            if goes_on:
                # Without workers nothing is under way.
                if loader_batches is not None and hasattr(iterator, "_rcvd_idx"):
                    loader_batches.expects(iterator)
                phases = self.phases
                phases.last = perf_counter()
                phases.guard += phases.last - began
                return None
        except Exception as error:
            self.failed("loader probe", error)
        return self._plain["fetch_begins"](iterator)

    def fetched(self, iterator: Any, content: object) -> None:
        """The loop has its next batch: it is noted, and nobody else need be told."""
        began, burst, watchers = perf_counter(), self._bursts.now, self._watchers
        loader_batches, reads = (
            getattr(iterator, LoaderBatches.ATTRIBUTE, None),
            self._bad_batches.feeding,
        )
        passes = None if burst is None else len(burst.copies)
        if (
            passes is None
            or loader_batches is None
            or loader_batches is not self._batch_source.loader_batches
            or (reads is not None and reads.log.grown)
            or watchers.swallowed.batches + 1 >= watchers.swallowed.due
            or self.off
        ):
            self._plain["fetched"](iterator, content, passes)
            return
        try:
            loader_batches.handed_out(iterator, content, min(HELD, 2 + passes))
            watchers.swallowed.batches += 1
            phases, host = self.phases, self.phases.host
            host["data_wait"] = host.get("data_wait", 0.0) + began - phases.last
            phases.last = perf_counter()
            phases.guard += phases.last - began
        except Exception as error:
            self.failed("loader probe", error)
        if watchers.on:
            attempt(self, "watchers", watchers.fetched, iterator, sys._getframe())

    # ------------------------------------------------------------------ the scaler

    def scaler_used(self, scaler: Any) -> None:
        """A scaler is about to scale a loss."""
        burst = self._bursts.now
        if burst is not None and burst.burst_part.plan.scaled and self._scaling.last() is scaler:
            return
        self._close()
        self._plain["scaler_used"](scaler)

    def scaler_begins(self, scaler: Any) -> None:
        """``GradScaler.step`` is about to run."""
        scaling = self._scaling
        if self.off or scaling.last() is not scaler:
            self._plain["scaler_begins"](scaler)
            return
        scaling.scaler, scaling.stepped = scaler, False

    # ------------------------------------------------------------------ backward and clipping

    def backward_begins(self, tensors: object) -> bool:
        """Backward is called; True when the step is lost already, and it need not run."""
        finite, burst = self._finite_loss, self._bursts.now
        finite.depth += 1
        try:
            if burst is not None and burst.backward_begins(tensors, finite, sys._getframe()):
                if self._watchers.on:
                    attempt(self, "watchers", self._watchers.backward, tensors)
                return False
        except Exception as error:
            self.failed("burst", error)
        self._close()
        finite.depth -= 1
        return self._plain["backward_begins"](tensors)

    def backward_ends(self, *, freed: bool = False) -> None:
        """Backward has returned or raised; ``freed``: nothing more can be computed by its graph."""
        finite, burst = self._finite_loss, self._bursts.now
        if finite.depth == 1 and burst is not None and burst.root is not None:
            finite.depth = 0
            try:
                if freed and burst.backward_ended():
                    return
            except Exception as error:
                self.failed("burst", error)
            self._close()
            finite.depth = 1
        self._plain["backward_ends"](freed=freed)

    def clip_begins(self, parameters: Iterable[Tensor] | Tensor) -> Measured | None:
        """Before clipping: decide about the step."""
        burst = self._bursts.now
        if burst is not None and type(parameters) is list:
            began = perf_counter()
            try:
                if burst.clip_begins(self._clip_order.of(parameters)):
                    spent = perf_counter() - began
                    self.phases.guard += spent
                    self.phases.last += spent
                    return None
            except Exception as error:
                self.failed("burst", error)
        self._close()
        return self._plain["clip_begins"](parameters)

    def clip_ends(self) -> None:
        """Clipping is over."""
        burst = self._bursts.now
        if burst is None:
            self._plain["clip_ends"]()
            return
        try:
            burst.clip_ends()
        except Exception as error:
            self.failed("burst", error)

    # ------------------------------------------------------------------ the step

    def step_begins(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """``optimizer.step`` is about to run; may hand back other arguments."""
        closure = closure_of(args, kwargs) if kwargs or len(args) > 1 else None
        burst = self._bursts.now
        if burst is not None and closure is None:
            try:
                if burst.step_begins(optimizer):
                    if burst.next is None:
                        self._training.iteration += 1
                    else:
                        self._writer.number(burst.burst_part.plan.guard)
                    return None
            except Exception as error:
                self.failed("burst", error)
        # What is captured in a graph is not guarded, and no reason to end anything.
        if not out_of_reach():
            if burst is not None and closure is not None and burst.takes_closure(optimizer):
                return self._with_closure(burst, optimizer, closure, args, kwargs)
            self._close()
        return self._plain["step_begins"](optimizer, args, kwargs)

    def _with_closure(
        self,
        burst: StepBurst,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._finite_loss.inside = True

        def decide() -> None:
            foreign_step.gradients_made(optimizer)
            # Backward may have ended the burst.
            here = self._bursts.now is not None
            (self.step_begins if here else self._plain["step_begins"])(optimizer, (), {})
            self._finite_loss.inside = True

        return with_guard(closure, decide, burst.burst_part.plan.guard.only_detect, args, kwargs)

    def step_ends(self, optimizer: Optimizer) -> None:
        """``optimizer.step`` has returned."""
        burst = self._bursts.now
        if burst is None or burst.pending is None:
            self._plain["step_ends"](optimizer)
            return
        self._watchers.swallowed.batches = 0
        try:
            more = burst.step_ends(optimizer, self._training.iteration)
            if burst.next is not None:
                self._bursts.now = burst.next
            if not more:
                self._goes_on()
        except Exception as error:
            self.failed("burst", error)
        if self._watchers.on and burst.noted:
            self._watched(burst)
        self._finite_loss.inside = False

    @fail_open("watchers")
    def _watched(self, burst: StepBurst) -> None:
        """The record of a step comes later, but for what watchers ask of it."""
        guard, noted = burst.burst_part.plan.guard, burst.noted[-1]
        record = StepRecord(noted.step, guard.index, {"data_wait": math.nan, **noted.host})
        record.positions = burst.burst_part.plan.positions
        self._watchers.step_ended(record, sys._getframe())
