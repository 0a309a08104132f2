"""A round of a training loop that reads no loader is over, and somebody has waited for that."""

from __future__ import annotations

from types import FrameType

from ..engine_state import EngineState
from ..fail_open import EnginePart, attempt


class RoundHooks(EnginePart):
    """What is done between two rounds, as ``fetch_begins`` does between two batches.

    Args:
        state: of the engine.
    """

    def __init__(self, state: EngineState) -> None:
        super().__init__(state)
        self._training, self._recovery = state.training, state.recovery
        self._last_state, self._position = state.last_state, state.position
        self._fast = state.fast
        state.recovery.checkpoints.script.between_rounds = self.round_ends

    def round_ends(self, frame: FrameType) -> bool:
        """Save what is due, or end; False where the next round must be awaited."""
        position = self._position
        if not position.between and "resume" not in self.off:
            return False
        self._fast.close()
        signals = self._last_state.signals
        if signals is not None and signals.pending and signals.alone and position.asks_now():
            self._last_state.end_here(frame)
        at = None if position.replaying or position.gives_again else frame
        where = self._training.iteration, False, (), at, position.steps
        attempt(self, "recovery", self._recovery.boundary, *where)
        return True
