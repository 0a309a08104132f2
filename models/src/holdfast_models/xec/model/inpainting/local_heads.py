"""Heads that read the surroundings of a hidden sensor: the family per_face with local context.

B events, n cells or sensors of a face, C predicted channels, D width of a token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..blocks import channels_first, channels_last
from ..faces import Faces
from .features import CellPooling, HexFeatures, ImageFeatures, mlp

__all__ = ["LocalHexHead", "LocalImageHead", "LocalOuterHead"]


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
