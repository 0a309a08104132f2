"""From text to surface: which energies a sentence would put on the cells.

Shape suffixes: B batch, S cells W*H, P places of a text, D width of the bridge.
"""

from __future__ import annotations

from torch import Tensor, nn

from .attention import DROPOUT, Attention, FeedForward, Words, start_weights
from .settings import BridgeSettings


class TextEncoder(nn.Module):
    """A small transformer over the pieces of a text, their mean, and a surface made of it.

    Args:
        words: pieces of the vocabulary.
        cells: of the surface.
        settings: its widths.
    """

    def __init__(self, words: int, cells: int, settings: BridgeSettings) -> None:
        super().__init__()
        width = settings.width
        self.words = Words(words, width, dropout=DROPOUT)
        self.layers = nn.ModuleList(
            [EncoderLayer(width, settings.heads, dropout=DROPOUT) for _ in range(settings.layers)]
        )
        self.surface = nn.Sequential(
            nn.Linear(width, width),
            nn.GELU(),
            nn.LayerNorm(width),
            nn.Dropout(DROPOUT),
            nn.Linear(width, cells),
            nn.Tanh(),
        )
        self.apply(start_weights)

    def forward(self, ids_BP: Tensor, mask_BP: Tensor) -> Tensor:
        """The surface ``[B, S]`` of texts as ``Vocabulary.encode`` gives them."""
        x_BPD = self.words(ids_BP)
        for layer in self.layers:
            x_BPD = layer(x_BPD, mask_BP)
        # In float32: the mean over a hundred places loses digits in half precision.
        share_BP1 = mask_BP[:, :, None].float()
        mean_BD = (x_BPD.float() * share_BP1).sum(1) / share_BP1.sum(1)
        return self.surface(mean_BD)


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each added to its input and then normalised."""

    def __init__(self, width: int, heads: int, *, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout=dropout)
        self.forward_part = FeedForward(width, dropout=dropout)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BPD: Tensor, mask_BP: Tensor) -> Tensor:
        """The places after this layer; those outside the mask are seen by none."""
        taken_BPD = self.attention(x_BPD, self.attention.see(x_BPD), mask_BQ=mask_BP)
        x_BPD = self.norm1(x_BPD + self.dropout(taken_BPD))
        return self.norm2(x_BPD + self.dropout(self.forward_part(x_BPD)))
