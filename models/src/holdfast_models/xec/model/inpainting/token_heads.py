"""Heads that know a face's token and nothing of the surroundings: per_face for comparison.

B events, n cells or sensors of a face, C predicted channels, D width of a token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..blocks import channels_last
from .features import mlp

__all__ = ["TokenImageHead", "TokenNodeHead"]

_PLACE_STD = 0.02


class TokenImageHead(nn.Module):
    """A map of 4 x 4 positions from the token, interpolated to the image."""

    def __init__(self, width: int, outputs: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.map = nn.Sequential(
            nn.Linear(width, 64), nn.GELU(), nn.Linear(64, 64 * 16), nn.Unflatten(1, (64, 4, 4))
        )
        self.out = nn.Sequential(
            nn.Conv2d(64, 16, 3, padding=1), nn.GELU(), nn.Conv2d(16, outputs, 1)
        )

    def forward(self, x: Tensor, token_BD: Tensor, seen_Bn: Tensor) -> Tensor:
        """(B, n, C)."""
        image = nn.functional.interpolate(self.map(token_BD), self.shape, mode="bilinear")
        return channels_last(self.out(image)).flatten(1, 2)


class TokenNodeHead(nn.Module):
    """The token at each node or sensor; an embedding tells them apart."""

    def __init__(self, width: int, outputs: int, nodes: int) -> None:
        super().__init__()
        self.token = nn.Linear(width, 96)
        self.node_nC = nn.Parameter(torch.randn(nodes, 96) * _PLACE_STD)
        self.out = nn.Sequential(nn.LayerNorm(96), mlp(96, 128, outputs))

    def forward(self, x: Tensor, token_BD: Tensor, seen_Bn: Tensor) -> Tensor:
        """(B, n, C)."""
        return self.out(self.token(token_BD).unsqueeze(1) + self.node_nC)
