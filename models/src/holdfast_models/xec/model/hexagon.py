"""The encoder of the hexagonal faces, shared by top and bottom.

B events, N = 73 nodes, C channels, D width of a token.
"""

from __future__ import annotations

from torch import Tensor, nn

from .blocks import HexNeXtBlock

__all__ = ["HexEncoder"]

_BLOCKS = 4


class HexEncoder(nn.Module):
    """HexNeXt blocks on the nodes, and their mean as one token.

    Args:
        width: of the token, D.
        channels: of the nodes.
        drop_path: stochastic depth of the last block; it grows linearly up to there.
    """

    def __init__(self, width: int, channels: int, drop_path: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(2, channels), nn.LayerNorm(channels), nn.GELU())
        rates = [drop_path * depth / (_BLOCKS - 1) for depth in range(_BLOCKS)]
        self.blocks = nn.ModuleList(HexNeXtBlock(channels, rate) for rate in rates)
        self.norm = nn.LayerNorm(channels)
        self.token = nn.Linear(channels, width)

    def forward(self, x_BNC: Tensor, visible_BN1: Tensor | None = None) -> Tensor:
        """The token (B, D)."""
        x_BNC = self.embed(x_BNC)
        for block in self.blocks:
            x_BNC = block(x_BNC, visible_BN1)
        return self.token(self.norm(x_BNC.mean(1)))
