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
        hidden_BH = self.layers[:-1](tokens_BTD.flatten(1))
        # A forecast has no device that numbers could be rounded on.
        if hidden_BH.is_meta or not torch.is_autocast_enabled(hidden_BH.device.type):
            return self.layers[-1](hidden_BH)
        # The eight bits of a bf16 output would be millimetres of a position.
        with torch.autocast(hidden_BH.device.type, enabled=False):
            return self.layers[-1](hidden_BH.float())
