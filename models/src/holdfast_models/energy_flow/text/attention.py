"""The parts text encoder and decoder are both made of: attention, feed-forward, word table.

Shape suffixes: B batch, P places of a text, Q places that are attended to, D width of the bridge,
H heads, V pieces of the vocabulary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast import HoldfastError

from .settings import PLACES

DROPOUT = 0.1
"""Everywhere in the encoder and the decoder."""


class AttendedKeys(NamedTuple):
    """Keys and values of what is attended to, split by heads: ``[B, H, Q, D/H]`` each."""

    keys: Tensor
    values: Tensor


class Attention(nn.Module):
    """Attention of several heads in which what is attended to can be kept for the next place."""

    def __init__(self, width: int, heads: int, *, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def see(self, x_BQD: Tensor) -> AttendedKeys:
        """Keys and values of these places."""
        keys_BQD, values_BQD = self.key_value(x_BQD).chunk(2, dim=-1)
        return AttendedKeys(self._split(keys_BQD), self._split(values_BQD))

    def forward(
        self,
        x_BPD: Tensor,
        seen: AttendedKeys,
        *,
        mask_BQ: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """What each place takes from the places seen.

        Args:
            x_BPD: the places that ask.
            seen: from ``see``.
            mask_BQ: True where there is something to attend to; everywhere by default.
            causal: a place sees itself and those before it.
        """
        mixed = functional.scaled_dot_product_attention(
            self._split(self.query(x_BPD)),
            seen.keys,
            seen.values,
            attn_mask=None if mask_BQ is None else mask_BQ[:, None, None, :],
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=causal,
        )
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _split(self, x_BPD: Tensor) -> Tensor:
        return x_BPD.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class FeedForward(nn.Sequential):
    """Twice the width in between, GELU and dropout."""

    def __init__(self, width: int, *, dropout: float) -> None:
        super().__init__(
            nn.Linear(width, 2 * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(2 * width, width),
        )


class Words(nn.Module):
    """The table of pieces plus a learned table of positions that starts as sines and cosines."""

    def __init__(self, words: int, width: int, *, dropout: float) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.positions = nn.Parameter(_waves(PLACES, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids_BP: Tensor, first: int = 0) -> Tensor:
        """Vectors of the pieces, of which the first stands at the place ``first``."""
        places = ids_BP.shape[1]
        if first + places > PLACES:
            raise HoldfastError(
                f"a text has {first + places} pieces, the bridge reads {PLACES}; "
                f"encode it with length={PLACES} or less"
            )
        # The table starts at 0.02: beside the waves, of size one, it would hardly be seen.
        x_BPD = self.table(ids_BP) * math.sqrt(self.table.embedding_dim)
        return self.dropout(x_BPD + self.positions[first : first + places])

    def logits(self, x_BPD: Tensor) -> Tensor:
        """How likely each piece is, by the same table."""
        return functional.linear(x_BPD, self.table.weight)


def start_weights(module: nn.Module) -> None:
    """Xavier-uniform matrices without bias, embeddings of deviation 0.02; for ``apply``."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def _waves(places: int, width: int) -> Tensor:
    place_P1 = torch.arange(places, dtype=torch.float32)[:, None]
    even = torch.arange(0, width, 2, dtype=torch.float32)
    angle = place_P1 * torch.exp(even * (-math.log(10_000.0) / width))
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, :width].contiguous()
