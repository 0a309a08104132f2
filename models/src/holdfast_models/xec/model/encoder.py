"""The encoder that regressor, autoencoder and inpainter share: one token per face.

B events, S sensors, C channels (npho, time), T tokens, D their width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..settings import EncoderSettings
from .backbone import FaceBackbone, HexEncoder
from .faces import HEXAGONAL, Faces
from .fusion import Fusion

__all__ = ["Encoder"]

_PLACE_STD = 0.02


class Encoder(nn.Module):
    """Images through one backbone, hexagonal faces through another, all tokens through fusion."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self.settings = settings
        self.faces = Faces(settings)
        width = settings.encoder_dim
        shapes = [self.faces.shapes[name] for name in self.tokens if name not in HEXAGONAL]
        self.backbone = FaceBackbone(width, shapes, settings.pool, settings.drop_path_rate)
        self.hexagon = HexEncoder(width, settings.hex_dim, settings.drop_path_rate)
        self.place_TD = nn.Parameter(torch.empty(len(self.tokens), width))
        nn.init.trunc_normal_(self.place_TD, std=_PLACE_STD)
        self.fusion = Fusion(
            width, settings.feedforward, settings.num_fusion_layers, settings.fusion_dropout
        )

    @property
    def tokens(self) -> tuple[str, ...]:
        """What each token is about, in order."""
        return self.faces.names

    def forward(
        self, x_BSC: Tensor, hidden_BS: Tensor | None = None, valid_BSC: Tensor | None = None
    ) -> Tensor:
        """The tokens (B, T, D).

        Args:
            x_BSC: normalised values, with sentinels where nothing was measured.
            hidden_BS: sensors whose positions are empty in the sense of a sparse convolution.
            valid_BSC: where ``x_BSC`` holds a value and no sentinel; see ``masking.valid_of``.
        """
        images = self.faces(x_BSC, valid_BSC)
        visible = None if hidden_BS is None else self.faces.visible(hidden_BS, x_BSC.dtype)
        return self.fuse(images, visible)

    def fuse(self, images: Mapping[str, Tensor], visible: Mapping[str, Tensor] | None) -> Tensor:
        """The tokens of images that are already cut."""
        tokens: dict[str, Tensor] = {}
        for names in self._groups():
            network = self.hexagon if names[0] in HEXAGONAL else self.backbone
            x = torch.cat([images[name] for name in names])
            seen = None if visible is None else torch.cat([visible[name] for name in names])
            found = network(x, seen).unflatten(0, (len(names), -1)).unbind(0)
            tokens.update(zip(names, found, strict=True))
        tokens_BTD = torch.stack([tokens[name] for name in self.tokens], dim=1)
        return self.fusion(tokens_BTD + self.place_TD)

    def _groups(self) -> list[tuple[str, ...]]:
        """Images of one size go through the backbone together."""
        by_shape: dict[tuple[int, ...], list[str]] = {}
        for name in self.tokens:
            by_shape.setdefault(self.faces.shapes[name], []).append(name)
        return [tuple(names) for names in by_shape.values()]
