"""Puts a saved state back into the live run: that of a snapshot, or the best by validation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ..actions.lower_learning_rate import lower_learning_rates
from ..checkpoint.training_state import RNG, BestState
from ..config import RollbackSettings
from .live_state import LiveState, with_live_groups
from .training import Training


class RestoredBest(NamedTuple):
    """The best state by validation, which is in place now."""

    step: int
    value: float
    """Of the validation."""
    lr_factor: float
    """What the learning rate was multiplied by."""
    ms: float
    """Milliseconds that it took."""


class Restoring:
    """What a rollback does to the run.

    Args:
        settings: whether the schedule goes back too, and the factor of the learning rate.
        training: of this process.
        live: the objects that a state is put back into.
    """

    def __init__(self, settings: RollbackSettings, training: Training, live: LiveState) -> None:
        self.best_state: Callable[[], BestState | None] = lambda: None
        """Reads the best state by validation; None where nothing was validated."""
        self.stale: set[int] = set()
        """The optimizers whose next gradients may be of weights that are gone: they are skipped."""
        self._settings, self._training, self._live = settings, training, live

    def put_back(
        self, saved: Mapping[str, Any], *, rng_state: bool = False, everything: bool = False
    ) -> None:
        """Restore the run. State that follows the loop stays, since the loop has gone on."""
        own = self._live.training_state()
        state = dict(saved)
        parts = {"models", "optimizers", "scaler", "ema"}
        if everything or self._settings.schedule:
            parts.add("schedulers")
        else:
            state["optimizers"] = with_live_groups(state["optimizers"], own.optimizers)
        if everything or rng_state:
            parts.add(RNG)
        tensors = (t for m in own.models.values() for t in (*m.parameters(), *m.buffers()))
        # A backward pass to come would refuse weights that have changed since its forward pass.
        with _unsafe_preserve_version_counter(tuple(t for t in tensors if not t.is_inference())):
            own.put_back(state, parts=parts)
        self.stale |= self._training.yet_to_step
        self._training.restored()

    def put_back_best(
        self, *, lower: bool, agreed: Callable[[int | None], bool]
    ) -> RestoredBest | None:
        """Restore the best state by validation; None without one.

        Args:
            lower: with a lower learning rate.
            agreed: whether all ranks have the best state of the same step; None for none.
        """
        began = time.perf_counter()
        best = self._read_best()
        if not agreed(None if best is None else best.step) or best is None:
            return None
        self.put_back(best.tree)
        factor = self.lower_rates() if lower else 1.0
        return RestoredBest(best.step, best.value, factor, (time.perf_counter() - began) * 1e3)

    def lower_rates(self) -> float:
        """Lower every learning rate; the factor."""
        optimizers = [optimizer for optimizer, _ in self._training.guards()]
        schedulers = self._live.training_state().schedulers
        if self._settings.lr != 1.0:
            lower_learning_rates(optimizers, schedulers, self._settings.lr)
        return self._settings.lr

    def _read_best(self) -> BestState | None:
        try:
            return self.best_state()
        except Exception as error:
            self._training.failure("reading the best state", error)
            return None
