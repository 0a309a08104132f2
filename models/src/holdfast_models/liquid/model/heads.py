"""What is read off the last block.

B batch, T tokens or time steps, H width, V vocabulary, C classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from ..settings import ModelSettings
from .linear import residual_linear
from .norms import normed

if TYPE_CHECKING:
    from .model import Sizes


class TextHead(nn.Module):
    """Logits of the next token.

    With tied embeddings the layer before the last ends at the width of the embedding.
    """

    def __init__(self, settings: ModelSettings, vocabulary: int) -> None:
        super().__init__()
        width = settings.hidden_dim
        wide = settings.embedding_dim if settings.tie_embeddings else 2 * width
        self.widen = residual_linear(width, wide)
        self.norm = nn.LayerNorm(wide)
        self.dropout = nn.Dropout(settings.dropout)
        self.last = residual_linear(wide, vocabulary)

    def forward(self, x_BTH: Tensor) -> Tensor:
        """(B, T, V)."""
        wide = nn.functional.gelu(self.widen(x_BTH))
        return self.last(self.dropout(normed(self.norm, wide)))


class ImageHead(nn.Module):
    """Logits of the classes, after the last position."""

    def __init__(self, settings: ModelSettings, classes: int) -> None:
        super().__init__()
        width = settings.hidden_dim
        self.layers = nn.Sequential(
            residual_linear(width, width),
            nn.ReLU(),
            nn.LayerNorm(width),
            nn.Dropout(settings.dropout),
            residual_linear(width, classes),
        )

    def forward(self, x_BTH: Tensor) -> Tensor:
        """(B, C)."""
        return self.layers(x_BTH[:, -1])


class SignalHead(nn.Module):
    """Signals of every time step."""

    def __init__(self, settings: ModelSettings, outputs: int) -> None:
        super().__init__()
        width = settings.hidden_dim
        self.layers = nn.Sequential(
            residual_linear(width, width, gain=1.0),
            nn.Tanh(),
            residual_linear(width, width // 2, gain=1.0),
            nn.Tanh(),
            residual_linear(width // 2, outputs),
        )

    def forward(self, x_BTH: Tensor) -> Tensor:
        """(B, T, outputs)."""
        return self.layers(x_BTH)


def make_head(settings: ModelSettings, sizes: Sizes) -> nn.Module:
    """The one for a task."""
    kinds = {"llm": TextHead, "vision": ImageHead, "robotics": SignalHead}
    return kinds[sizes.task](settings, sizes.outputs)
