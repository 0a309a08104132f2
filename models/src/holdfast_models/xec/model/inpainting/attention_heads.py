"""Heads that let a hidden sensor attend to those around it that are seen: masked_attention.

B events, n cells or sensors of a face, C features, then predicted channels, K neighbours,
D width of a token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ...geometry import layout
from ...geometry.neighbours import ABSENT, within_hops
from ..faces import Faces
from .features import CellPooling, HexFeatures, ImageFeatures, mlp

__all__ = ["AttentionHexHead", "AttentionImageHead", "AttentionOuterHead"]

_HOPS = 2
_NEVER = -1e9  # score of a neighbour that is not seen


class _Attention(nn.Module):
    """Neighbours count by how alike their features are; from what they add up to, a value."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.sharpness = nn.Parameter(torch.ones(()))
        self.out = mlp(2 * channels, channels, outputs)

    def forward(
        self, own: Tensor, others: Sequence[Tensor], seen: Sequence[Tensor], token_BC: Tensor
    ) -> Tensor:
        """Predictions in the shape of ``own``, (B, places..., C).

        ``others`` and ``seen`` have one member per neighbour: a list, because views of one image
        take no memory, and all neighbours of all sensors in one tensor would.
        """
        scale = self.sharpness / math.sqrt(own.shape[-1])
        scores = torch.stack([(own * other).sum(-1) for other in others], dim=-1) * scale
        there = torch.stack(list(seen), dim=-1)
        weights = torch.where(there, scores, _NEVER).softmax(-1) * there
        read = torch.zeros_like(own)
        for other, weight in zip(others, weights.unbind(-1), strict=True):
            read = read + weight.unsqueeze(-1) * other
        token = token_BC.reshape(token_BC.shape[0], *(1 for _ in own.shape[1:-1]), -1)
        return self.out(torch.cat((read, token.expand_as(read)), dim=-1))


class AttentionImageHead(nn.Module):
    """A cell attends to the 24 around it."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.features = ImageFeatures(width)
        self.attention = _Attention(self.features.channels, outputs)

    def forward(self, x_BHWC: Tensor, token_BD: Tensor, seen_Bn: Tensor) -> Tensor:
        """(B, n, C)."""
        features, token_BC = self.features(x_BHWC, token_BD)
        seen = seen_Bn.unflatten(1, features.shape[1:3]).unsqueeze(-1)
        others = _around(features)
        there = [one.squeeze(-1) for one in _around(seen)]
        return self.attention(features, others, there, token_BC).flatten(1, 2)


class AttentionHexHead(nn.Module):
    """A node attends to those within two links."""

    def __init__(self, width: int, outputs: int, face: str) -> None:
        super().__init__()
        self.features = HexFeatures(width)
        self.attention = _Attention(self.features.channels, outputs)
        self.near = _Near(face)

    def forward(self, x_BNC: Tensor, token_BD: Tensor, seen_Bn: Tensor) -> Tensor:
        """(B, n, C)."""
        features, token_BC = self.features(x_BNC, token_BD)
        return self.attention(features, *self.near(features, seen_Bn), token_BC)


class AttentionOuterHead(nn.Module):
    """A sensor of the finegrid outer face attends to those within two steps."""

    def __init__(self, width: int, outputs: int, faces: Faces) -> None:
        super().__init__()
        self.features = ImageFeatures(width)
        self.pooling = CellPooling(faces, self.features.channels, bias=False)
        self.attention = _Attention(self.features.channels, outputs)
        self.near = _Near("outer")

    def forward(self, x_BHWC: Tensor, token_BD: Tensor, seen_Bn: Tensor) -> Tensor:
        """(B, n, C) with n the sensors of the face."""
        features, token_BC = self.features(x_BHWC, token_BD)
        sensors_BQC = self.pooling(features)
        return self.attention(sensors_BQC, *self.near(sensors_BQC, seen_Bn), token_BC)


class _Near(nn.Module):
    """The neighbours of each sensor of a face, by table."""

    near_Kn: Tensor
    present_Kn: Tensor

    def __init__(self, face: str) -> None:
        super().__init__()
        sensors = layout.sensors_of(face)
        table = within_hops(_HOPS)[sensors]
        table = table[:, (table != ABSENT).any(0)].T
        present = table != ABSENT
        places = np.where(present, np.searchsorted(sensors, table), 0)
        self.register_buffer("near_Kn", torch.as_tensor(places), persistent=False)
        self.register_buffer("present_Kn", torch.as_tensor(present), persistent=False)

    def forward(self, x_BnC: Tensor, seen_Bn: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Features and visibility of the first neighbour of every sensor, of the second, ..."""
        others = [x_BnC.index_select(1, near_n) for near_n in self.near_Kn.unbind(0)]
        pairs = zip(self.near_Kn.unbind(0), self.present_Kn.unbind(0), strict=True)
        return others, [seen_Bn.index_select(1, near_n) & there_n for near_n, there_n in pairs]


def _around(image_BHWC: Tensor) -> list[Tensor]:
    """The image moved by each of the 24 steps, zeros beyond its edge; views."""
    rows, columns = image_BHWC.shape[1:3]
    wide = nn.functional.pad(image_BHWC, (0, 0, _HOPS, _HOPS, _HOPS, _HOPS))
    steps = range(2 * _HOPS + 1)
    return [
        wide[:, down : down + rows, right : right + columns]
        for down in steps
        for right in steps
        if (down, right) != (_HOPS, _HOPS)
    ]
