"""The head of one task: from all tokens to its outputs."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["TaskHead"]

_DROPOUT = 0.2


class TaskHead(nn.Module):
    """A small network on the tokens laid end to end.

    Args:
        inputs: tokens times their width.
        hidden: width of the two hidden layers.
        outputs: of the task.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Dropout(_DROPOUT),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, outputs),
        )

    def forward(self, tokens_BTD: Tensor) -> Tensor:
        """The outputs, on the network's scale."""
        return self.layers(tokens_BTD.flatten(1))
