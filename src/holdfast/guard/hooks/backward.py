"""The script calls backward: its loss is kept for the step, and written once that has used it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Hashable

from ...probes.loss import KEPT
from ..engine_state import EngineState
from ..fail_open import EnginePart, attempt, fail_open
from ..finite_loss import place_of_call


class BackwardHooks(EnginePart):
    """Hooks around ``backward``.

    Args:
        state: of the engine.
    """

    def __init__(self, state: EngineState) -> None:
        super().__init__(state)
        self._settings = state.settings.guard
        self._training, self._writer, self._window = state.training, state.writer, state.window
        self._scaling, self._finite_loss = state.scaling, state.finite_loss
        self._fast = state.fast
        self._investigation, self._watchers = state.investigation, state.watchers

    def backward_begins(self, tensors: object) -> bool:
        """Backward is called; True when the step is lost already, and it need not run."""
        finite = self._finite_loss
        finite.depth += 1
        if finite.depth == 1:
            self.loss_seen(tensors)
        return self._training.memory.lost

    def backward_ends(self, *, freed: bool = False) -> None:
        """Backward has returned or raised; ``freed``: nothing more can be computed by its graph."""
        finite = self._finite_loss
        finite.depth -= 1
        if finite.depth:
            return
        busy = self._window.losses.latest is not None or not self._investigation.idle
        if busy or finite.pending is not None or not self._writer.stepped:
            self._backward_done(freed)
        elif "loss probe" not in self.off:
            # The common case, without the wrapper.
            try:
                if not self.phases.idle:
                    self.phases.mark("backward", time.perf_counter())
            except Exception as error:
                self.failed("loss probe", error)

    @fail_open("loss probe", ends="forward")
    def loss_seen(self, tensors: object) -> None:
        """Backward has begun on a loss."""
        losses = self._window.losses
        loss = tensors if self._scaling.made is None else self._scaling.unscaled(tensors)
        number = losses.saw(loss)
        bad = number is not None and not math.isfinite(number)
        optimizers = len(self._training.registry)
        if number is not None and not bad and optimizers <= 1:
            self._finite_loss.numbers[losses.passes] = number
        elif self._finite_loss.on and "loss reading" not in self.off:
            # Here and below without another wrapper, which takes as long as what it calls.
            try:
                self._see_loss(tensors, loss, number, optimizers)
            except Exception as error:
                self.failed("loss reading", error)
        followed = self._training.followed
        if followed.looking and "followed losses" not in self.off:
            attempt(self, "followed losses", followed.saw, tensors, loss, sys._getframe())
        self._investigation.calls_backward(tensors)
        watchers = self._watchers
        if (watchers.on or watchers.evaluates) and "watchers" not in self.off:
            try:
                watchers.backward(tensors)
            except Exception as error:
                self.failed("watchers", error)
        if not self._investigation.idle:
            attempt(self, "investigation", self._investigation.backward_begins, tensors)
        if bad and self._settings.explain:
            attempt(self, "investigation", self._investigation.loss_is_bad, sys._getframe())

    def _see_loss(self, root: object, loss: object, number: float | None, optimizers: int) -> None:
        bad = number is None or not math.isfinite(number)
        # Only what is skipped may look as if it had not happened.
        if bad and not self._fast.knows(optimizers) and not self._training.registry.all_skip():
            return
        variable = root if loss is root else self._scaling.variable()
        # Losses of several optimizers are told apart by their lines, others by their turn.
        losses = self._window.losses
        key: Hashable = losses.passes
        if optimizers > 1:
            key = place_of_call(sys._getframe())
            if losses.passes <= KEPT:
                losses.places.append(key)
        self._finite_loss.seen(root, loss, variable, number, key, sys._getframe())

    @fail_open("loss probe", ends="backward")
    def _backward_done(self, freed: bool) -> None:
        finite, losses = self._finite_loss, self._window.losses
        if finite.pending is not None and not freed:
            finite.pending = None
        elif finite.pending is not None:
            try:
                finite.returned(losses)
            except Exception as error:
                self.failed("loss reading", error)
        if losses.latest is not None:
            losses.settle()
        if not self._writer.stepped:
            self._writer.saw_backward(losses)
        if not self._investigation.idle:
            on_host = not self._settings.device_path
            looks = self._investigation.backward_ends
            attempt(self, "investigation", looks, sys._getframe(), on_host)
