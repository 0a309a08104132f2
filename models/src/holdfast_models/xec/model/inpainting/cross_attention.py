"""The head that knows where sensors are, not which image they are in: cross_attention.

B events, S sensors, C channels, K nearest sensors, T tokens, P width of a place, L latent width,
H width of the attention to sensors, A heads of the attention to tokens.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from holdfast import HoldfastError

from ...geometry.layout import FACES, face_of_sensor
from ...geometry.neighbours import nearest
from ...geometry.positions import positions
from ...settings import InpainterSettings
from .features import mlp

__all__ = ["CrossAttentionHead", "encoded_positions"]

_FACE_WIDTH, _HEADS = 32, 4
_SHORTEST, _LONGEST = 1.0, 256.0  # cm; sensors are 1.5 cm apart at least, the tank 250 cm long
_NEVER = -1e9  # score of a sensor that is not seen


class CrossAttentionHead(nn.Module):
    """A sensor asks with its place; the nearest ones that are seen answer, and all tokens."""

    place_SP: Tensor
    face_S: Tensor
    nearest_SK: Tensor

    def __init__(self, settings: InpainterSettings, outputs: int) -> None:
        super().__init__()
        place, hidden = settings.cross_attn_pos_dim, settings.cross_attn_hidden
        latent = settings.cross_attn_latent_dim
        if place % 6 or latent % _HEADS:
            raise HoldfastError(
                f"cross_attn_pos_dim is {place} and cross_attn_latent_dim {latent}; give a "
                f"multiple of 6 (sine and cosine of 3 coordinates) and one of {_HEADS} (heads)"
            )
        self.face = nn.Embedding(len(FACES), _FACE_WIDTH)
        self.query = nn.Linear(place + _FACE_WIDTH, hidden)
        self.key = nn.Linear(2 + place, hidden, bias=False)  # a bias would cancel in the softmax
        self.value = nn.Linear(2 + place, hidden)
        self.tokens = nn.Linear(settings.encoder_dim, latent)
        self.token_query = nn.Linear(place + _FACE_WIDTH, latent)
        self.token_key = nn.Linear(latent, latent)
        self.token_value = nn.Linear(latent, latent)
        self.token_out = nn.Linear(latent, latent)
        self.out = nn.Sequential(
            nn.LayerNorm(hidden + latent), mlp(hidden + latent, hidden, outputs)
        )
        tables = {
            "place_SP": encoded_positions(place),
            "face_S": torch.as_tensor(face_of_sensor().copy()),
            "nearest_SK": torch.as_tensor(nearest(settings.cross_attn_k).copy()),
        }
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)

    def forward(self, x_BSC: Tensor, tokens_BTD: Tensor, seen_BS: Tensor) -> Tensor:
        """Predictions for all sensors, (B, S, channels)."""
        place_SP = torch.cat((self.place_SP, self.face(self.face_S)), dim=-1)
        near_BSH = self._from_sensors(place_SP, x_BSC, seen_BS)
        far_BSL = self._from_tokens(place_SP, tokens_BTD)
        return self.out(torch.cat((near_BSH, far_BSL), dim=-1))

    def _from_sensors(self, place_SP: Tensor, x_BSC: Tensor, seen_BS: Tensor) -> Tensor:
        """Attention over the nearest sensors, with keys and values of [their values, their place].

        Places are the same in all events. What keys and values owe to them is computed once, and
        the products with the two measured values are taken before the sum over neighbours: the
        (B, S, K, H) keys and values are never there, which would be 20 MB per event.
        """
        query_SH = self.query(place_SP) / math.sqrt(self.query.out_features)
        key_x, key_place = self.key.weight.tensor_split((2,), dim=1)
        value_x, value_place = self.value.weight.tensor_split((2,), dim=1)
        near_SKP = self.place_SP[self.nearest_SK]
        fixed_SK = torch.einsum("sh,skh->sk", query_SH, nn.functional.linear(near_SKP, key_place))
        shape = self.nearest_SK.shape
        x_BSKC = x_BSC.index_select(1, self.nearest_SK.flatten()).unflatten(1, shape)
        seen_BSK = seen_BS.index_select(1, self.nearest_SK.flatten()).unflatten(1, shape)
        score_BSK = torch.einsum("bskc,sc->bsk", x_BSKC, query_SH @ key_x) + fixed_SK
        weight_BSK = torch.where(seen_BSK, score_BSK, _NEVER).softmax(-1) * seen_BSK
        read_BSC = torch.einsum("bsk,bskc->bsc", weight_BSK, x_BSKC)
        place_SKH = nn.functional.linear(near_SKP, value_place, self.value.bias)
        read_BSH = torch.einsum("bsk,skh->bsh", weight_BSK, place_SKH.to(weight_BSK.dtype))
        return read_BSH + nn.functional.linear(read_BSC, value_x)

    def _from_tokens(self, place_SP: Tensor, tokens_BTD: Tensor) -> Tensor:
        tokens_BTL = self.tokens(tokens_BTD)
        query, key, value = (
            x.unflatten(-1, (_HEADS, -1)).transpose(1, 2)
            for x in (
                self.token_query(place_SP).expand(tokens_BTL.shape[0], -1, -1),
                self.token_key(tokens_BTL),
                self.token_value(tokens_BTL),
            )
        )
        read = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.token_out(read.transpose(1, 2).flatten(2))


def encoded_positions(width: int) -> Tensor:
    """Sines and cosines of each coordinate, (S, width); wavelengths from 256 cm to 1 cm."""
    bands = width // 6
    wavelengths = np.geomspace(_LONGEST, _SHORTEST, bands)
    angles = 2 * np.pi * positions()[:, :, None] / wavelengths
    encoded = np.concatenate((np.sin(angles), np.cos(angles)), axis=-1)
    return torch.as_tensor(encoded.reshape(len(encoded), -1), dtype=torch.float32)
