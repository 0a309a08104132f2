"""The script's GradScaler scales a loss, steps and updates: which loss it was, and who skipped."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from torch.optim import Optimizer

from ..engine_state import EngineState
from ..fail_open import EnginePart, attempt, fail_open

_PROBE = "scaler probe"


class ScalerHooks(EnginePart):
    """Hooks around the methods of a ``GradScaler``.

    Three of them only note what happens: whether that is like the step before is asked by a burst
    when backward and the step of the optimizer begin.

    Args:
        state: of the engine.
        skipped_by: told of a step that a scaler has skipped by itself.
    """

    def __init__(
        self,
        state: EngineState,
        skipped_by: Callable[[Any, Optimizer], None],
    ) -> None:
        super().__init__(state)
        self._scaling, self._fast = state.scaling, state.fast
        self._in_use, self._live = state.writer.scaler, state.recovery.live
        self._skipped_by = skipped_by

    def scaler_used(self, scaler: Any) -> None:
        """A scaler is about to scale a loss: it follows the policy, where there is one."""
        attempt(self, _PROBE, self._scaling.used, scaler)
        attempt(self, "scaler policy", self._in_use.used, scaler)

    def scaled(self, loss: Any, result: Any) -> None:
        """``GradScaler.scale`` made ``result`` of ``loss``: backward will be called on it."""
        if self.off and _PROBE in self.off:
            return
        began = perf_counter()
        try:
            self._scaling.scaled(loss, result)
        except Exception as error:
            self.failed(_PROBE, error)
        spent = perf_counter() - began
        self.phases.guard += spent
        self.phases.last += spent

    def scaler_begins(self, scaler: Any) -> None:
        """``GradScaler.step`` is about to run."""
        if self.off and _PROBE in self.off:
            return
        scaling = self._scaling
        scaling.scaler, scaling.stepped = scaler, False
        attempt(self, _PROBE, self._live.saw_scaler, scaler)

    def scaler_ends(self, optimizer: Optimizer) -> None:
        """``GradScaler.step`` has returned; without a step of ours it was skipped by the scaler."""
        scaling = self._scaling
        scaler, scaling.scaler = scaling.scaler, None
        if scaler is not None and not scaling.stepped:
            self._skipped(scaler, optimizer)

    @fail_open(_PROBE)
    def _skipped(self, scaler: Any, optimizer: Optimizer) -> None:
        self._fast.close()
        self._skipped_by(scaler, optimizer)

    def scaler_updated(self, scaler: Any) -> None:
        """``scaler.update()`` has run."""
        if self._in_use.policy is not None:
            attempt(self, "scaler policy", self._in_use.updated, scaler)
