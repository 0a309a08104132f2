"""Heads that let a hidden sensor attend to those around it that are seen: masked_attention.

B events, n cells or sensors of a face, C features, then predicted channels, K neighbours,
D width of a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ...geometry import layout
from ...geometry.neighbours import ABSENT, within_hops
from .features import CellPooling, HexFeatures, ImageFeatures, mlp

__all__ = ["AttentionHead", "Near", "around"]

_HOPS = 2
_NEVER = -1e9  # score of a neighbour that is not seen

Around = Callable[[Tensor, Tensor], tuple[list[Tensor], list[Tensor]]]
"""Of features and what is seen: both, of the first neighbour of every place, of the second, ..."""


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


class AttentionHead(nn.Module):
    """A cell, node or sensor attends to those around it.

    Args:
        features: of the face.
        near: who is around, ``around`` or ``Near``.
        outputs: predicted channels.
        pooling: from the cells of the finegrid outer face to its sensors.
    """

    def __init__(
        self,
        features: ImageFeatures | HexFeatures,
        near: Around,
        outputs: int,
        pooling: CellPooling | None = None,
    ) -> None:
        super().__init__()
        self.features, self.pooling = features, pooling
        self.attention = _Attention(features.channels, outputs)
        self.near = near

    def forward(self, x: Tensor, token_BD: Tensor, seen_Bn: Tensor) -> Tensor:
        """(B, n, C)."""
        own, token_BC = self.features(x, token_BD)
        own = own if self.pooling is None else self.pooling(own)
        return self.attention(own, *self.near(own, seen_Bn), token_BC).flatten(1, -2)


class Near(nn.Module):
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


def around(image_BHWC: Tensor, seen_Bn: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The same of the 24 cells around each cell of an image."""
    seen_BHW1 = seen_Bn.unflatten(1, image_BHWC.shape[1:3]).unsqueeze(-1)
    return _moved(image_BHWC), [one.squeeze(-1) for one in _moved(seen_BHW1)]


def _moved(image_BHWC: Tensor) -> list[Tensor]:
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
