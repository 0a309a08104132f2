"""Adaptive gate: how much of the liquid and how much of the state-space output, per head.

Shape suffixes: B batch, T tokens, H width, G heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast import HoldfastError

from ..linear import attention_linear, residual_linear
from ..precision import full_precision


class AdaptiveGate(nn.Module):
    """Mixes two sequences by an opening in (0, 1) that depends on both.

        y_BTH, opening_BTG = AdaptiveGate(64, heads=4)(liquid_BTH, mamba_BTH)

    Args:
        width: H, of both inputs.
        heads: G, which must divide the width; each has an opening of its own.
    """

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise HoldfastError(
                f"the gate has {heads} heads, which do not divide the width {width}; "
                "choose a number of gate heads that does"
            )
        self.heads = heads
        self.query = attention_linear(width, width)
        self.key = attention_linear(width, width)
        self.opening = residual_linear(width, heads)
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def forward(self, liquid_BTH: Tensor, mamba_BTH: Tensor) -> tuple[Tensor, Tensor]:
        """The mixture, and the opening for the liquid side."""
        score_BTG = self.opening(self.query(liquid_BTH) * self.key(mamba_BTH))
        sharpness = torch.exp(-self.log_temperature)
        opening_BTG = torch.sigmoid(full_precision(score_BTG) * sharpness)
        spread_BTH = opening_BTG.repeat_interleave(liquid_BTH.shape[-1] // self.heads, dim=-1)
        return spread_BTH * liquid_BTH + (1.0 - spread_BTH) * mamba_BTH, opening_BTG


def entropy(opening_BTG: Tensor) -> Tensor:
    """Entropy in nats of the mean opening of each head, at most log 2; for a floor in the loss.

    It is near 0 when a head uses one side for all tokens, however sharp its openings are.
    """
    mean_G = full_precision(opening_BTG).mean((0, 1))
    return torch.special.entr(mean_G) + torch.special.entr(1.0 - mean_G)
