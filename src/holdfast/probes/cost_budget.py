"""Cost budget of the guard: above it, optional measurements become less frequent."""

from __future__ import annotations

# Steps per judgement; the first window (compilation, first allocations) does not count.
_WINDOW = 64
# How much less often optional measurements are taken afterwards.
LEAN = 16


# Rows that have arrived from the device may wait this long to be handled together: one by one,
# between short steps, each would find the processor's caches cold.
_TOGETHER = 8
_TOGETHER_SECONDS = 0.02


class Budget:
    """Compares host seconds spent in holdfast with the time the steps took."""

    def __init__(self, share: float) -> None:
        self.lean = False
        self.measured = 0.0
        self.together = 1
        """How many rows from the device are handled at a time: more while steps are short."""
        self._share = share
        self._ours = 0.0
        self._since: float | None = None
        self._steps = 0

    def spend(self, ours: float, now: float) -> bool:
        """Count one step; True when the allowance has just been found exceeded."""
        self._ours += ours
        self._steps += 1
        if self._steps % _WINDOW:
            return False
        since, self._since = self._since, now
        spent, self._ours = self._ours, 0.0
        if since is None or now <= since:
            return False
        self.together = max(1, min(_TOGETHER, int(_TOGETHER_SECONDS * _WINDOW / (now - since))))
        if self.lean:
            return False
        self.measured = spent / (now - since)
        self.lean = self.measured > self._share
        return self.lean
