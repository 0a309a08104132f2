"""The masked autoencoder: what hidden sensors measured, from those that are seen.

B events, S sensors, C channels.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..settings import MaeSettings
from .decoders import ConvDecoder, HexDecoder, PixelDecoder
from .encoder import Encoder
from .faces import HEXAGONAL

__all__ = ["MaskedAutoencoder"]


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
