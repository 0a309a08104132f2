"""Causal attention over what is cached and what is new, over everything or a sliding window.

Shape suffixes: B batch, A heads, T new tokens, P cached tokens, C channels, d channels of a head,
W window, K blocks of W tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ..precision import full_precision

_BASE = 10_000.0  # of the speeds of rotary positions, as usual


class KeyValues(NamedTuple):
    """Keys and values of the tokens that can still be seen, (B, A, P, d), keys not rotated."""

    keys: Tensor
    values: Tensor
    known_BP: Tensor | None = None
    """Of a cache of a fixed size: which places hold a token; new ones push the oldest out."""


def with_room(cached: KeyValues, tokens: int) -> KeyValues:
    """The cache with room for so many tokens more, so that its size never changes."""
    if cached.known_BP is not None:
        return cached
    batch, _, past, _ = cached.keys.shape
    known_P = torch.arange(-tokens, past, device=cached.keys.device) >= 0
    keys, values = (functional.pad(of, (0, 0, tokens, 0)) for of in cached[:2])
    return KeyValues(keys, values, known_P.repeat(batch, 1))


class CausalAttention(NamedTuple):
    """How to attend: to itself and the tokens before, at most ``window`` in all.

    Rotations depend on distances only, so a cache that the window has cut needs no count of the
    tokens that were dropped.
    """

    heads: int
    window: int | None = None
    rope: bool = False
    dropout: float = 0.0

    def __call__(
        self, queries_BTC: Tensor, keys_BTC: Tensor, values_BTC: Tensor, cached: KeyValues | None
    ) -> tuple[Tensor, KeyValues]:
        """What each query takes from the values, (B, T, C), and the cache for the next tokens."""
        queries, keys, values = (
            of.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for of in (queries_BTC, keys_BTC, values_BTC)
        )
        known_BP = None
        first = keys.shape[2]
        if cached is not None:
            keys = torch.cat((cached.keys.to(keys.dtype), keys), dim=2)
            values = torch.cat((cached.values.to(values.dtype), values), dim=2)
            known_BP = cached.known_BP
        if known_BP is not None:
            known_BP = torch.cat((known_BP, known_BP.new_ones(len(keys), first)), dim=1)
        else:
            first = 0 if self.window is None else max(0, keys.shape[2] - (self.window - 1))
        cut = None if known_BP is None else known_BP[:, first:]
        cached = KeyValues(keys[:, :, first:], values[:, :, first:], cut)
        if self.rope:
            queries, keys = rotated(queries, keys.shape[2] - queries.shape[2]), rotated(keys)
        mixed_BATd = _attend(queries, keys, values, self.window, self.dropout, known_BP)
        return mixed_BATd.transpose(1, 2).flatten(2), cached


def rotated(x_BATd: Tensor, first: int = 0) -> Tensor:
    """Rotary positions: the first token stands at place ``first``."""
    tokens, channels = x_BATd.shape[2:]
    x_BATd = full_precision(x_BATd)
    options = {"dtype": x_BATd.dtype, "device": x_BATd.device}
    speed = _BASE ** -(torch.arange(0, channels, 2, **options) / channels)
    angle = torch.arange(first, first + tokens, **options)[:, None] * speed
    left, right = x_BATd.chunk(2, dim=-1)
    sine, cosine = angle.sin(), angle.cos()
    return torch.cat((left * cosine - right * sine, left * sine + right * cosine), dim=-1)


def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    window: int | None,
    dropout: float,
    known_BP: Tensor | None,
) -> Tensor:
    """The last T of the keys belong to the queries; (B, A, T, d)."""
    tokens, past = queries.shape[2], keys.shape[2] - queries.shape[2]
    if window is not None and tokens > window and known_BP is None:
        return _in_blocks(queries, keys, values, window, dropout)
    if past == 0 and window is None:
        return functional.scaled_dot_product_attention(
            queries, keys, values, dropout_p=dropout, is_causal=True
        )
    place = torch.arange(past + tokens, device=keys.device)
    mask = _visible(place[past:, None], place, window)
    if known_BP is not None:
        mask = mask & known_BP[:, None, None]
    return functional.scaled_dot_product_attention(queries, keys, values, mask, dropout)


def _in_blocks(
    queries: Tensor, keys: Tensor, values: Tensor, window: int, dropout: float
) -> Tensor:
    """Each block of W queries sees its own block and the one before: linear in T."""
    batch, _, tokens, _ = queries.shape
    past, after = keys.shape[2] - tokens, -tokens % window
    queries = functional.pad(queries, (0, 0, 0, after)).unflatten(2, (-1, window)).transpose(1, 2)
    pairs = (
        functional.pad(of, (0, 0, window - past, after)).unfold(2, 2 * window, window)
        for of in (keys, values)
    )
    keys, values = (of.permute(0, 2, 1, 4, 3).flatten(0, 1) for of in pairs)
    place = torch.arange(-window, tokens + after, device=keys.device)
    asking, asked = place[window:].unflatten(0, (-1, window)), place.unfold(0, 2 * window, window)
    mask_KWW = _visible(asking[:, :, None], asked[:, None], window) & (asked[:, None] >= -past)
    mask = mask_KWW.repeat(batch, 1, 1)[:, None]
    mixed = functional.scaled_dot_product_attention(
        queries.flatten(0, 1), keys, values, mask, dropout
    )
    return mixed.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)[:, :, :tokens]


def _visible(asking: Tensor, asked: Tensor, window: int | None) -> Tensor:
    visible = asked <= asking
    return visible if window is None else visible & (asked > asking - window)
