"""Layers with two weights: backpropagation trains the slow one, plasticity moves the fast one.

B batch, T tokens, K inputs (spiking units), U outputs (liquid units).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast import HoldfastError

_CROSSING = 0.5


def events_of(h_BTU: Tensor) -> Tensor:
    """1 where |h| rises through 0.5, else 0; before the first token the units are at rest."""
    above_BTU = h_BTU.detach().abs() >= _CROSSING
    before_BTU = nn.functional.pad(above_BTU[:, :-1], (0, 0, 1, 0))
    return (above_BTU & ~before_BTU).float()


class PlasticLinear(nn.Module):
    """Linear layer with weight ``weight + alpha * fast``.

    ``fast`` is a buffer in [-bound, bound], or [0, bound]: saved with the model, unseen by
    optimizers, moved by ``Plasticity``. While ``record`` is True a forward in training mode keeps
    its input, and ``observe`` the states of the units that the layer feeds.
    """

    fast: Tensor

    def __init__(
        self, inputs: int, outputs: int, bound: float = 1.0, non_negative: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.alpha = nn.Parameter(torch.tensor(0.1))
        self.register_buffer("fast", torch.zeros(outputs, inputs))
        self.lower, self.upper = (0.0 if non_negative else -bound), bound
        self.record = False
        self._pre_BTK: Tensor | None = None
        self._state_BTU: Tensor | None = None
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")

    def forward(self, x_BTK: Tensor) -> Tensor:
        """``x_BTK @ (weight + alpha * fast)^T + bias``."""
        if self.record and self.training:
            self._pre_BTK = x_BTK.detach()
        return nn.functional.linear(x_BTK, self.weight + self.alpha * self.fast, self.bias)

    def observe(self, h_BTU: Tensor) -> None:
        """Take the states of the units that this layer feeds; their events are the post spikes."""
        if self.record and self.training:
            self._state_BTU = h_BTU.detach()

    @property
    def seen(self) -> tuple[Tensor | None, Tensor | None]:
        """Inputs and states of the last forward as they came."""
        return self._pre_BTK, self._state_BTU

    @seen.setter
    def seen(self, given: tuple[Tensor | None, Tensor | None]) -> None:
        self._pre_BTK, self._state_BTU = given

    def recorded(self) -> tuple[Tensor, Tensor]:
        """Inputs and states of the last forward, float32."""
        if self._pre_BTK is None or self._state_BTU is None:
            raise HoldfastError(
                f"plasticity: a layer {tuple(self.fast.shape)} has recorded nothing; run the model "
                f"in training mode and call observe(states) after every forward."
            )
        return self._pre_BTK.float(), self._state_BTU.float()
