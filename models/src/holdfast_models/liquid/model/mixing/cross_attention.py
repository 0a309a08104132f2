"""Cross-attention over time between the liquid and the state-space part of a block.

Shape suffixes: B batch, T tokens, U liquid units, H width.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from holdfast import HoldfastError

from ..linear import attention_linear, residual_linear
from .causal import Cache, CausalAttention


class CrossState(NamedTuple):
    """Keys and values of both sides so far."""

    of_mamba: Cache
    of_liquid: Cache


class CrossAttention(nn.Module):
    """Each side asks the other about the tokens so far and adds the answer to itself.

        cross = CrossAttention(units=32, width=64, heads=8)
        l_BTU, m_BTH, state = cross(l_BTU, m_BTH)

    Args:
        units: U, width of the liquid side.
        width: H, of the state-space side.
        heads: each has min(U, H) // heads channels.
        window: how many tokens a token sees, itself included; None: all so far.
    """

    def __init__(self, units: int, width: int, heads: int = 8, window: int | None = None) -> None:
        super().__init__()
        channels = min(units, width) // heads * heads if heads > 0 else 0
        if channels == 0 or (window is not None and window < 1):
            raise HoldfastError(
                f"cross-attention of {units} liquid units and width {width} has {heads} heads and "
                f"window {window}; choose 1 to {min(units, width)} heads, and a window above 0"
            )
        attention = CausalAttention(heads, window)
        self.liquid_asks = _Direction(units, width, channels, attention)
        self.mamba_asks = _Direction(width, units, channels, attention)

    def forward(
        self, l_BTU: Tensor, m_BTH: Tensor, state: CrossState | None = None
    ) -> tuple[Tensor, Tensor, CrossState]:
        """Both sides with what they took from each other, and the caches."""
        of_mamba, of_liquid = (None, None) if state is None else state
        to_liquid_BTU, of_mamba = self.liquid_asks(l_BTU, m_BTH, of_mamba)
        to_mamba_BTH, of_liquid = self.mamba_asks(m_BTH, l_BTU, of_liquid)
        return l_BTU + to_liquid_BTU, m_BTH + to_mamba_BTH, CrossState(of_mamba, of_liquid)

    def with_room(self, state: CrossState, tokens: int) -> CrossState:
        """The caches with room for so many tokens more."""
        asks = (self.liquid_asks, self.mamba_asks)
        rooms = (one.attention.with_room(of, tokens) for one, of in zip(asks, state, strict=True))
        return CrossState(*rooms)


class _Direction(nn.Module):
    """Who asks, and who is asked."""

    def __init__(self, asking: int, asked: int, channels: int, attention: CausalAttention) -> None:
        super().__init__()
        self.attention = attention
        self.query = attention_linear(asking, channels)
        self.key_value = attention_linear(asked, channels, parts=2)
        self.out = residual_linear(channels, asking)

    def forward(self, asking: Tensor, asked: Tensor, cached: Cache | None) -> tuple[Tensor, Cache]:
        keys, values = self.key_value(asked).chunk(2, dim=-1)
        mixed, cached = self.attention(self.query(asking), keys, values, cached)
        return self.out(mixed), cached
