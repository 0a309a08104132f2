"""The masked autoencoder: what hidden sensors measured, from those that are seen.

Its decoders go from a face's token to a value in each of its cells. B events, S sensors, C
channels, D width of a token, n cells of a face.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..geometry.layout import HEX_ROWS
from ..settings import MaeSettings
from .blocks import HexNeXtBlock
from .encoder import Encoder
from .faces import HEXAGONAL

__all__ = ["ConvDecoder", "HexDecoder", "MaskedAutoencoder", "PixelDecoder"]

_PLACE_STD = 0.02


class MaskedAutoencoder(nn.Module):
    """The encoder, and one decoder per face that sees nothing but the face's token."""

    def __init__(self, settings: MaeSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = Encoder(settings)
        width, channels = settings.encoder_dim, settings.decoder_dim
        outputs = len(settings.predict_channels)
        kind = {"conv": ConvDecoder, "pixel": PixelDecoder}[settings.decoder]
        self.decoders = nn.ModuleDict()
        for name, shape in self.encoder.faces.shapes.items():
            if name in HEXAGONAL:
                self.decoders[name] = HexDecoder(width, channels, outputs)
            else:
                self.decoders[name] = kind(width, channels, shape, outputs)

    def forward(self, x_BSC: Tensor, unseen_BS: Tensor, valid_BSC: Tensor | None = None) -> Tensor:
        """Predictions of ``predict_channels`` for all sensors, (B, S, channels).

        Args:
            x_BSC: as ``masking.with_hidden`` leaves it.
            unseen_BS: hidden sensors and those that are not maskable.
            valid_BSC: where ``x_BSC`` holds a value; ``masking.valid_of`` of the same inputs.
        """
        tokens_BTD = self.encoder(x_BSC, unseen_BS, valid_BSC)
        faces = self.encoder.faces
        parts = {
            name: self.decoders[name](token_BD)
            for name, token_BD in zip(faces.names, tokens_BTD.unbind(1), strict=True)
        }
        if "outer" in parts:
            parts["outer"] = faces.outer_sensors(parts["outer"], self.settings.predict_channels)
        return faces.to_sensors(parts)


class _MapDecoder(nn.Module):
    """From a token to a map of 16 x 16 positions with ``decoder_dim / 2`` channels."""

    def __init__(self, width: int, channels: int) -> None:
        super().__init__()
        self.start = nn.Linear(width, 2 * channels * 16)
        self.grow = nn.Sequential(
            nn.Unflatten(1, (2 * channels, 4, 4)),
            _doubling(2 * channels, channels),
            nn.LayerNorm([channels, 8, 8]),
            nn.GELU(),
            _doubling(channels, channels // 2),
            nn.LayerNorm([channels // 2, 16, 16]),
            nn.GELU(),
        )

    def forward(self, token_BD: Tensor) -> Tensor:
        return self.grow(self.start(token_BD))


class ConvDecoder(nn.Module):
    """16 x 16 values, interpolated to the size of the face; single sensors are not resolved.

    Args:
        width: of the token, D.
        channels: ``decoder_dim``.
        shape: rows and columns of the face.
        outputs: predicted channels.
    """

    def __init__(self, width: int, channels: int, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.shape = shape
        self.map = _MapDecoder(width, channels)
        self.out = nn.ConvTranspose2d(channels // 2, outputs, 3, padding=1)

    def forward(self, token_BD: Tensor) -> Tensor:
        """(B, n, C), row by row."""
        values = nn.functional.interpolate(
            self.out(self.map(token_BD)), self.shape, mode="bilinear"
        )
        return values.flatten(2).transpose(1, 2)


class PixelDecoder(nn.Module):
    """The same map with a last stage that has a position for every cell; arguments as above.

    Cells that copy one position of the map are alike, but for an embedding of their place.
    """

    def __init__(self, width: int, channels: int, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.shape = shape
        self.map = _MapDecoder(width, channels)
        self.fine = nn.Conv2d(channels // 2, channels // 4, 3, padding=1)
        self.place_CHW = nn.Parameter(torch.randn(channels // 4, *shape) * _PLACE_STD)
        self.out = nn.Conv2d(channels // 4, outputs, 1)

    def forward(self, token_BD: Tensor) -> Tensor:
        """(B, n, C), row by row."""
        cells = nn.functional.interpolate(self.map(token_BD), self.shape, mode="nearest")
        cells = nn.functional.gelu(self.fine(cells) + self.place_CHW)
        return self.out(cells).flatten(2).transpose(1, 2)


class HexDecoder(nn.Module):
    """The token at every node, told apart by an embedding, through two HexNeXt blocks.

    Args:
        width: of the token, D.
        channels: ``decoder_dim``.
        outputs: predicted channels.
    """

    def __init__(self, width: int, channels: int, outputs: int) -> None:
        super().__init__()
        self.start = nn.Linear(width, channels)
        self.node_NC = nn.Parameter(torch.randn(sum(HEX_ROWS), channels) * _PLACE_STD)
        self.blocks = nn.Sequential(HexNeXtBlock(channels), HexNeXtBlock(channels))
        self.out = nn.Sequential(nn.LayerNorm(channels), nn.Linear(channels, outputs))

    def forward(self, token_BD: Tensor) -> Tensor:
        """(B, n, C), node by node."""
        return self.out(self.blocks(self.start(token_BD).unsqueeze(1) + self.node_NC))


def _doubling(inputs: int, outputs: int) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(inputs, outputs, 3, stride=2, padding=1, output_padding=1)
