"""Causal attention over what is cached and what is new, over everything or a sliding window.

Shape suffixes: B batch, A heads, T new tokens, P cached tokens, C channels, d channels of a head,
W window, K blocks of W tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ...kernels import ops
from ...kernels.choice import takes
from ..precision import full_precision

_BASE = 10_000.0  # of the speeds of rotary positions, as usual
_WIDEST = 256  # channels of a head that a program has room for


class KeyValues(NamedTuple):
    """Keys and values of the tokens that can still be seen, (B, A, P, d), keys not rotated."""

    keys: Tensor
    values: Tensor


class RoomyKeyValues(NamedTuple):
    """A cache of a fixed size, which tokens are written into one behind the other, in place.

    Keys are rotated by their place in it: distances are what they were, whatever the first was.
    """

    keys: Tensor
    values: Tensor
    count_B: Tensor
    """Places that hold a token, as many in every row."""


Cache = KeyValues | RoomyKeyValues


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
        self, queries_BTC: Tensor, keys_BTC: Tensor, values_BTC: Tensor, cached: Cache | None
    ) -> tuple[Tensor, Cache]:
        """What each query takes from the values, (B, T, C), and the cache for the next tokens."""
        if isinstance(cached, RoomyKeyValues):
            mixed_BTC = self._into(cached, queries_BTC, keys_BTC, values_BTC)
            return mixed_BTC, cached._replace(count_B=cached.count_B + queries_BTC.shape[1])
        queries, keys, values = map(self._heads, (queries_BTC, keys_BTC, values_BTC))
        if cached is not None:
            keys = torch.cat((cached.keys.to(keys.dtype), keys), dim=2)
            values = torch.cat((cached.values.to(values.dtype), values), dim=2)
        first = 0 if self.window is None else max(0, keys.shape[2] - (self.window - 1))
        cached = KeyValues(keys[:, :, first:], values[:, :, first:])
        if self.rope:
            queries, keys = rotated(queries, keys.shape[2] - queries.shape[2]), rotated(keys)
        mixed_BATd = _attend(queries, keys, values, self.window, self.dropout)
        return mixed_BATd.transpose(1, 2).flatten(2), cached

    def with_room(self, cached: Cache, tokens: int) -> RoomyKeyValues:
        """The cache with room for so many tokens more; one that has room already stays."""
        if isinstance(cached, RoomyKeyValues):
            return cached
        past = cached.keys.shape[2]
        keys = rotated(cached.keys) if self.rope else cached.keys
        keys, values = (functional.pad(of, (0, 0, 0, tokens)) for of in (keys, cached.values))
        return RoomyKeyValues(keys, values, keys.new_full((len(keys),), past, dtype=torch.int64))

    def _into(
        self, cached: RoomyKeyValues, queries_BTC: Tensor, keys_BTC: Tensor, values_BTC: Tensor
    ) -> Tensor:
        """The new tokens are written into the cache and attend to what is there."""
        channels, tokens = cached.keys.shape[3], queries_BTC.shape[1]
        plain = torch.is_grad_enabled() or tokens > 1 or channels % 2 or channels > _WIDEST
        if not plain and takes("attend", queries_BTC, channels, int(self.rope)):
            window, base = self.window or 0, _BASE if self.rope else 0.0
            return ops.attend(queries_BTC, keys_BTC, values_BTC, *cached, window, base)
        place_T = cached.count_B[0] + torch.arange(tokens, device=queries_BTC.device)
        queries, keys, values = map(self._heads, (queries_BTC, keys_BTC, values_BTC))
        if self.rope:
            queries, keys = rotated(queries, place_T), rotated(keys, place_T)
        for old, new in ((cached.keys, keys), (cached.values, values)):
            old.index_copy_(2, place_T, new.to(old.dtype))
        asked = torch.arange(cached.keys.shape[2], device=queries_BTC.device)
        mask = _visible(place_T[:, None], asked, self.window)
        mixed_BATd = functional.scaled_dot_product_attention(
            queries.to(cached.keys.dtype), cached.keys, cached.values, mask
        )
        return mixed_BATd.transpose(1, 2).flatten(2)

    def _heads(self, of_BTC: Tensor) -> Tensor:
        return of_BTC.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def rotated(x_BATd: Tensor, first: int | Tensor = 0) -> Tensor:
    """Rotary positions: the first token stands at place ``first``, or all at these places (T,)."""
    tokens, channels = x_BATd.shape[2:]
    x_BATd = full_precision(x_BATd)
    options = {"dtype": x_BATd.dtype, "device": x_BATd.device}
    speed = _BASE ** -(torch.arange(0, channels, 2, **options) / channels)
    if not isinstance(first, Tensor):
        first = torch.arange(first, first + tokens, **options)
    angle = first.to(x_BATd.dtype)[:, None] * speed
    left, right = x_BATd.chunk(2, dim=-1)
    sine, cosine = angle.sin(), angle.cos()
    return torch.cat((left * cosine - right * sine, left * sine + right * cosine), dim=-1)


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, window: int | None, dropout: float
) -> Tensor:
    """The last T of the keys belong to the queries; (B, A, T, d)."""
    tokens, past = queries.shape[2], keys.shape[2] - queries.shape[2]
    if window is not None and tokens > window:
        return _in_blocks(queries, keys, values, window, dropout)
    if past == 0 and window is None:
        return functional.scaled_dot_product_attention(
            queries, keys, values, dropout_p=dropout, is_causal=True
        )
    place = torch.arange(past + tokens, device=keys.device)
    mask = _visible(place[past:, None], place, window)
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
