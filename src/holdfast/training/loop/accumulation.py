"""The micro-batches of one optimizer step, and how much each of them counts.

The gradient of a step is the mean over all samples that went into it, whatever their number:
the last window of an epoch may hold fewer micro-batches, the last batch fewer samples, and with
several ranks one may have a sample more than another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from .. import distributed
from ..device import Place


class AccumulationWindow:
    """How far the current step is.

    Args:
        size: micro-batches to a step.
        usual: samples in a full micro-batch of this rank; learned from the first if not known.
        place: this rank.
    """

    def __init__(self, size: int, usual: int | None, place: Place) -> None:
        self.size = size
        self.passes = 0
        self.samples = 0
        self.fits = 0
        """Samples that fit into memory at once, once it ran out; 0: all of a micro-batch."""
        self._usual = usual
        self._place = place

    def weigh(self, samples: int) -> float:
        """One more micro-batch: what its mean loss is to be multiplied with."""
        if self._usual is None:
            self._usual = samples
        self.passes += 1
        self.samples += samples
        if self.size == self._place.world == 1:
            return 1.0  # its own mean is the gradient of the step
        return samples / (self._usual * self.size)

    @property
    def full(self) -> bool:
        """Whether the step is due."""
        return self.passes >= self.size

    def settle(self, parameters: Iterable[nn.Parameter], *, last: bool) -> None:
        """The step is due: make its gradient a mean; ``last`` says that an epoch ends."""
        expected = self.size * (self._usual or 1) * self._place.world
        count = float(self.samples)
        if last and self._place.world > 1:
            count = distributed.total({"samples": count}, self._place)["samples"]
        elif self._place.world > 1:
            count *= self._place.world  # amid an epoch all ranks have as many
        if not self.size == self._place.world == 1 and count not in (0.0, expected):
            grads = [p.grad for p in parameters if p.grad is not None]
            torch._foreach_mul_(grads, expected / count)
        self.drop()

    def drop(self) -> None:
        """Begin anew."""
        self.passes = self.samples = 0

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "passes": self.passes,
            "samples": self.samples,
            "usual": self._usual or 0,
            "fits": self.fits,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on amid a window."""
        self.passes, self.samples = int(state["passes"]), int(state["samples"])
        # With another number of ranks each takes another share; amid a window it stays.
        if self.passes or self._usual is None:
            self._usual = int(state["usual"]) or self._usual
        self.fits = int(state.get("fits", 0))
