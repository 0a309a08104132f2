"""Loops without a torch optimizer: only their backward passes are visible."""

from __future__ import annotations

import math
import time

from ..probes.loss import Losses
from ..probes.step_record import BLANK
from .lane import Lane

# Backward passes without any optimizer step before a loop is taken for one that updates by hand.
_PASSES = 64


class UpdatesByHand:
    """Rows made of backward passes, until an optimizer steps."""

    def __init__(self, lane: Lane) -> None:
        self.waiting = True
        """Whether no optimizer has stepped so far."""
        self.passes = 0
        self._lane = lane
        self._seen: list[tuple[float, float]] = []

    def saw_backward(self, losses: Losses, step: int) -> int:
        """A backward pass is over; the step that is next now."""
        self.passes += 1
        if self._lane.opened() is None or not losses.numbers:
            return step
        self._seen.append((time.time(), losses.numbers[-1]))
        return self.write(step) if len(self._seen) >= _PASSES else step

    def write(self, step: int) -> int:
        """Write what was seen as rows from ``step`` on; the step that is next."""
        seen, self._seen = self._seen, []
        for at, loss in seen:
            if self._lane.steps is not None:
                row = {
                    "loss": loss,
                    "loss_bad": float(not math.isfinite(loss)),
                    "backwards": 1.0,
                    "opt": -1.0,
                    "skipped": 0.0,
                }
                self._lane.steps.put(step, at, BLANK | row)
            step += 1
        return step

    def optimizer_stepped(self) -> None:
        """There is an optimizer after all."""
        self.waiting = False
        self._seen = []
