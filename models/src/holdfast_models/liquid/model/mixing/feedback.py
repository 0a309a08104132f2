"""What the state-space output of a block does to the spiking and liquid part of the next one.

Shape suffixes: B batch, T tokens, H width, K spiking units, U liquid units.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..linear import he_linear, zero_linear
from ..precision import full_precision


class MambaToSpikes(nn.Module):
    """An additional current in (0, 1) for the spike encoder of the next block.

    ``sample`` draws spikes, 0 or 1, with that probability; the gradient is the probability's.
    """

    def __init__(self, width: int, units: int, sample: bool = False) -> None:
        super().__init__()
        self.sample = sample
        self.proj = he_linear(width, units)

    def forward(self, m_BTH: Tensor) -> Tensor:
        """The current (B, T, K)."""
        chance_BTK = torch.sigmoid(full_precision(self.proj(m_BTH)))
        if not self.sample:
            return chance_BTK
        return torch.bernoulli(chance_BTK.detach()) + (chance_BTK - chance_BTK.detach())


class MambaToLiquid(nn.Module):
    """A factor in (0.5, 1.5) for the time constants of a liquid cell; 1 at the start."""

    def __init__(self, width: int, units: int) -> None:
        super().__init__()
        self.proj = zero_linear(width, units)

    def forward(self, m_BTH: Tensor) -> Tensor:
        """The factor (B, T, U)."""
        return 0.5 + torch.sigmoid(full_precision(self.proj(m_BTH)))
