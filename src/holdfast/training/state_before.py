"""What a pass leaves behind, so that it can be made again or not have been."""

from __future__ import annotations

import torch
from torch import nn

from ..checkpoint import rng


class StateBefore:
    """What a step that fails half-way may have changed: gradients, buffers, random state."""

    def __init__(self, model: nn.Module) -> None:
        self._gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
        held = [gradient for _, gradient in self._gradients if gradient is not None]
        # The tensors themselves come back: others may hold them.
        self._values = [(tensor, tensor.clone()) for tensor in (*held, *model.buffers())]
        self._rng_state = rng.state()

    def put_back(self) -> None:
        """Have it as it was."""
        with torch.no_grad():
            for tensor, value in self._values:
                tensor.copy_(value)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        rng.put_back(self._rng_state)
