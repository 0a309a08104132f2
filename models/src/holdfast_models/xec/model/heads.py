"""The head of one task: from all tokens to its outputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["TaskHead"]


class TaskHead(nn.Module):
    """A small network on the tokens laid end to end.

    Args:
        inputs: tokens times their width.
        hidden: width of the two hidden layers.
        outputs: of the task.
        dropout: between the two hidden layers.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, outputs),
        )

    def forward(self, tokens_BTD: Tensor) -> Tensor:
        """The outputs, on the network's scale."""
        flat_BI = tokens_BTD.flatten(1)
        # A forecast has no device that numbers could be rounded on.
        if flat_BI.is_meta or not torch.is_autocast_enabled(flat_BI.device.type):
            return self.layers(flat_BI)
        # In full precision from here on, for 1 % of the arithmetic: there is no sum behind it any
        # more that rounding errors could cancel in.
        with torch.autocast(flat_BI.device.type, enabled=False):
            return self.layers(flat_BI.float())
