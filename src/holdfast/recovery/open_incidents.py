"""What is wrong with the run at present, by optimizer, and what was wrong not long ago."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..probes.baseline import SKIPS
from ..suspicion import DamageWatch
from .training import Guarded

AGAIN = 200
"""Steps. Trouble so soon after a rollback is not another bad batch: it did not help."""


class OpenIncidents:
    """The watches over the rows of all optimizers.

    Args:
        patience: losses in a row far above the baseline before weights are suspected.
    """

    def __init__(self, patience: int) -> None:
        self.watches: dict[int, DamageWatch] = {}
        self.level = math.inf
        """The loss that is usual at present."""
        self.rolled_back = -AGAIN
        """The step of the last rollback."""
        self._patience = patience

    def of(self, guard: Guarded) -> DamageWatch:
        """The watch over an optimizer."""
        return self.watches.setdefault(guard.index, DamageWatch(self._patience, SKIPS))

    @property
    def none(self) -> bool:
        """Whether nothing is suspected of having damaged the weights."""
        return all(watch.first < 0 for watch in self.watches.values())

    def began(self, otherwise: int) -> int:
        """The step at which the present trouble began."""
        began = (watch.first for watch in self.watches.values() if watch.first >= 0)
        return min(began, default=otherwise)

    def over(self, step: int) -> None:
        """The run went back to an older state."""
        self.rolled_back = step
        for watch in self.watches.values():
            watch.settle()

    def state(self) -> dict[int, Any]:
        """What was seen, as plain data."""
        return {index: asdict(watch) for index, watch in self.watches.items()}

    def restore(self, state: Mapping[int, Any]) -> None:
        """Go on from what ``state`` gave."""
        own = {"patience": self._patience, "skips": SKIPS}
        for index, watch in state.items():
            self.watches[index] = DamageWatch(**{**watch, **own})
