"""The inpainter: values for dead sensors.

B events, S sensors, C channels.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor, nn

from ..settings import InpainterSettings
from .encoder import Encoder
from .faces import HEXAGONAL, OUTER_SENSORS
from .inpainting.attention_heads import AttentionHexHead, AttentionImageHead, AttentionOuterHead
from .inpainting.cross_attention import CrossAttentionHead
from .inpainting.local_heads import LocalHexHead, LocalImageHead, LocalOuterHead
from .inpainting.token_heads import TokenImageHead, TokenNodeHead

__all__ = ["Inpainter"]


class Inpainter(nn.Module):
    """The encoder, frozen or not, and heads that predict every sensor from those that are seen."""

    def __init__(self, settings: InpainterSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = Encoder(settings)
        if settings.freeze_encoder:
            self.encoder.requires_grad_(False).eval()
        self.heads = nn.ModuleDict()
        if settings.head_type == "cross_attention":
            outputs = len(settings.predict_channels)
            self.heads["sensors"] = CrossAttentionHead(settings, outputs)
        else:
            for name in self.encoder.tokens:
                self.heads[name] = self._head(name)

    def train(self, mode: bool = True) -> Inpainter:
        """As of every module; a frozen encoder stays in evaluation mode."""
        super().train(mode)
        if self.settings.freeze_encoder:
            self.encoder.eval()
        return self

    def forward(
        self,
        x_BSC: Tensor,
        hidden_BS: Tensor,
        usable_BS: Tensor,
        valid_BSC: Tensor | None = None,
    ) -> Tensor:
        """Predictions of ``predict_channels`` for all sensors, (B, S, channels).

        Args:
            x_BSC: as ``masking.with_hidden`` leaves it.
            hidden_BS: sensors to predict; what they measured is nowhere in the arguments.
            usable_BS: sensors with a valid npho; False for dead ones.
            valid_BSC: where ``x_BSC`` holds a value, ``masking.valid_of`` of the same inputs;
                None: in both channels of the sensors that are usable and not hidden.
        """
        seen_BS = usable_BS & ~hidden_BS
        if valid_BSC is None:
            valid_BSC = seen_BS.unsqueeze(-1).expand_as(x_BSC)
        faces = self.encoder.faces
        images = faces(x_BSC, valid_BSC)
        frozen = self.settings.freeze_encoder
        with torch.no_grad() if frozen else contextlib.nullcontext():
            tokens_BTD = self.encoder.fuse(images, faces.visible(~seen_BS, x_BSC.dtype))
        if "sensors" in self.heads:
            return self.heads["sensors"](x_BSC, tokens_BTD, seen_BS)
        seen = faces.by_face(seen_BS)
        parts = {
            name: self.heads[name](images[name], token_BD, seen[name])
            for name, token_BD in zip(faces.names, tokens_BTD.unbind(1), strict=True)
        }
        return faces.to_sensors(parts)

    def _head(self, name: str) -> nn.Module:
        """The head of one face."""
        settings, faces = self.settings, self.encoder.faces
        width, outputs = settings.encoder_dim, len(settings.predict_channels)
        hexagonal, fine = name in HEXAGONAL, name == "outer"
        if settings.head_type == "masked_attention":
            if hexagonal:
                return AttentionHexHead(width, outputs, name)
            if fine:
                return AttentionOuterHead(width, outputs, faces)
            return AttentionImageHead(width, outputs)
        if settings.use_local_context:
            if hexagonal:
                return LocalHexHead(width, outputs)
            if fine:
                return LocalOuterHead(width, outputs, faces)
            return LocalImageHead(width, outputs)
        if hexagonal or fine:
            nodes = OUTER_SENSORS if fine else faces.shapes[name][0]
            return TokenNodeHead(width, outputs, nodes)
        return TokenImageHead(width, outputs, faces.shapes[name])
