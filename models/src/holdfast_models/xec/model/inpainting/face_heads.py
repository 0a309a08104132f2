"""Heads of single faces, the family per_face: from the surroundings of a hidden sensor, or, for
comparison, from the token of the face alone.

B events, n cells or sensors of a face, C predicted channels, D width of a token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..blocks import channels_first, channels_last
from ..faces import Faces
from .features import CellPooling, HexFeatures, ImageFeatures, mlp

__all__ = ["LocalHexHead", "LocalImageHead", "LocalOuterHead", "TokenImageHead", "TokenNodeHead"]

_PLACE_STD = 0.02


class LocalImageHead(nn.Module):
    """Convolutions on the features of an image."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.features = ImageFeatures(width)
        channels = self.features.channels
        self.out = nn.Sequential(
            nn.Conv2d(channels, channels // 2, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(channels // 2, outputs, 1),
        )

    def forward(self, x_BHWC: Tensor, token_BD: Tensor, seen_Bn: Tensor) -> Tensor:
        """(B, n, C)."""
        features, _ = self.features(x_BHWC, token_BD)
        return channels_last(self.out(channels_first(features))).flatten(1, 2)


class LocalHexHead(nn.Module):
    """The same for a hexagonal face."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.features = HexFeatures(width)
        channels = self.features.channels
        self.out = mlp(channels, channels // 2, outputs)

    def forward(self, x_BNC: Tensor, token_BD: Tensor, seen_Bn: Tensor) -> Tensor:
        """(B, n, C)."""
        return self.out(self.features(x_BNC, token_BD)[0])


class LocalOuterHead(nn.Module):
    """The same for the finegrid outer face: one value per sensor, not per cell."""

    def __init__(self, width: int, outputs: int, faces: Faces) -> None:
        super().__init__()
        self.features = ImageFeatures(width)
        channels = self.features.channels
        self.pooling = CellPooling(faces, channels, bias=True)
        self.out = mlp(2 * channels, channels, outputs)

    def forward(self, x_BHWC: Tensor, token_BD: Tensor, seen_Bn: Tensor) -> Tensor:
        """(B, n, C) with n the sensors of the face."""
        features, token_BC = self.features(x_BHWC, token_BD)
        sensors_BQC = self.pooling(features)
        return self.out(torch.cat((sensors_BQC, token_BC[:, None].expand_as(sensors_BQC)), -1))


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
