"""The losses of one step, taken from the tensors on which ``backward`` is called.

A step may see several backward passes (accumulation, two heads, a GAN); the row carries their
mean and whether any of them was not finite. On a device the losses stay where they are and
travel in the device row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

COLUMNS = {
    "loss": "mean of the losses of this step",
    "loss_bad": "1 when one of them was NaN or infinite",
    "backwards": "number of backward passes in this step",
}

# Accumulation windows beyond this are folded into a running sum, so that a loop that calls
# backward for ever without stepping cannot make us hold a tensor per pass.
_KEEP = 64


def scalars(tensors: object) -> list[Tensor]:
    """The scalar floating tensors among what was handed to ``backward``, detached."""
    found = (
        tensors if isinstance(tensors, Iterable) and not isinstance(tensors, Tensor) else (tensors,)
    )
    return [
        t.detach()
        for t in found
        if isinstance(t, Tensor) and t.numel() == 1 and t.is_floating_point()
    ]


class Losses:
    """The losses since the last optimizer step."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []
        self.passes = 0

    def saw(self, tensors: object) -> None:
        """Remember the losses of one backward pass."""
        self.passes += 1
        if type(tensors) is Tensor and tensors.numel() == 1 and tensors.is_floating_point():
            self.values.append(tensors.detach())
        else:
            self.values.extend(scalars(tensors))
        if len(self.values) > _KEEP:
            with torch.no_grad():
                self.values = [torch.stack([v.reshape(()) for v in self.values]).mean()]

    def on_host(self) -> tuple[float, bool] | None:
        """Mean and "is one not finite"; None when reading them would touch a device."""
        if len(self.values) == 1:
            only = self.values[0]
            if not only.is_cpu:
                return None
            number = only.item()
            return number, not math.isfinite(number)
        if not self.values:
            return math.nan, False
        if not all(v.is_cpu for v in self.values):
            return None
        numbers = [v.item() for v in self.values]
        mean = sum(numbers) / len(numbers)
        return mean, not all(map(math.isfinite, numbers))

    def on_device(self, device: torch.device) -> Tensor | None:
        """The mean of the losses on ``device``; one that is not finite shows in it."""
        if not self.values:
            return None
        here = [v.reshape(()).to(device, non_blocking=True) for v in self.values]
        return here[0] if len(here) == 1 else torch.stack(here).mean()
