"""The inpainter: values for dead sensors.

B events, S sensors, C channels.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor, nn

from holdfast import HoldfastError

from ..data.normalization import lowest_npho, npho_from_scale, npho_to_scale
from ..settings import InpainterSettings, NormalizationSettings
from .encoder import Encoder
from .faces import HEXAGONAL, OUTER_SENSORS
from .fillings import NeighbourMean
from .inpainting.attention_heads import AttentionHead, Near, around
from .inpainting.cross_attention import CrossAttentionHead
from .inpainting.face_heads import (
    LocalHexHead,
    LocalImageHead,
    LocalOuterHead,
    TokenImageHead,
    TokenNodeHead,
)
from .inpainting.features import CellPooling, HexFeatures, ImageFeatures
from .light import spread_of

__all__ = ["Inpainter"]

_LEAST = 1e-3  # photons above the lowest that a scheme has a finite slope for


class Inpainter(nn.Module):
    """The encoder, frozen or not, and heads that predict every sensor from those that are seen.

    Args:
        settings: of encoder and heads.
        normalization: of the inputs, for heads that correct the mean of a sensor's neighbours.
    """

    def __init__(
        self, settings: InpainterSettings, normalization: NormalizationSettings | None = None
    ) -> None:
        super().__init__()
        self.settings = settings
        self.normalization = normalization or NormalizationSettings()
        self.near = NeighbourMean() if settings.against_neighbours else None
        if self.near is not None and "npho" not in settings.predict_channels:
            raise HoldfastError(
                "model.against_neighbours is about photons, and model.predict_channels is "
                f"{list(settings.predict_channels)}; add npho to them"
            )
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
        self, x_BSC: Tensor, hidden_BS: Tensor, usable_BS: Tensor, valid_BSC: Tensor | None = None
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
            pred_BSC = self.heads["sensors"](x_BSC, tokens_BTD, seen_BS)
            return self._corrected(pred_BSC, x_BSC, seen_BS)
        seen = faces.by_face(seen_BS)
        parts = {
            name: self.heads[name](images[name], token_BD, seen[name])
            for name, token_BD in zip(faces.names, tokens_BTD.unbind(1), strict=True)
        }
        return self._corrected(faces.to_sensors(parts), x_BSC, seen_BS)

    def _corrected(self, pred_BSC: Tensor, x_BSC: Tensor, seen_BS: Tensor) -> Tensor:
        """Predictions of how far a sensor is from the mean of its neighbours, as predictions of it.

        In units of what its count scatters by: small numbers, as exact for a dark sensor as for a
        bright one.
        """
        if self.near is None:
            return pred_BSC
        channel = self.settings.predict_channels.index("npho")
        npho_BS = npho_from_scale(x_BSC[..., 0].float(), self.normalization)
        near_BS = self.near(npho_BS, seen_BS)
        npho_BS = near_BS + spread_of(near_BS) * pred_BSC[..., channel].float()
        npho_BS = npho_BS.clamp_min(lowest_npho(self.normalization) + _LEAST)
        columns = list(pred_BSC.float().unbind(-1))
        columns[channel] = npho_to_scale(npho_BS, self.normalization)
        return torch.stack(columns, dim=-1)

    def _head(self, name: str) -> nn.Module:
        """The head of one face."""
        settings, faces = self.settings, self.encoder.faces
        width, outputs = settings.encoder_dim, len(settings.predict_channels)
        hexagonal, fine = name in HEXAGONAL, name == "outer"
        if settings.head_type == "masked_attention":
            if hexagonal:
                return AttentionHead(HexFeatures(width), Near(name), outputs)
            features = ImageFeatures(width)
            if not fine:
                return AttentionHead(features, around, outputs)
            pooling = CellPooling(faces, features.channels, bias=False)
            return AttentionHead(features, Near(name), outputs, pooling)
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
