"""Causal self-attention between blocks, whose queries, keys and values are spike rates.

Shape suffixes: B batch, T tokens, H width.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from holdfast import HoldfastError

from ..linear import attention_linear, residual_linear
from ..norms import normed
from ..spiking.lif import LIF
from .causal import Cache, CausalAttention


class SpikingAttention(nn.Module):
    """Self-attention with its residual: x + out(attention(norm(x))).

        attention = SpikingAttention(64, heads=8)
        y_BTH, cache = attention(x_BTH)              # a whole sequence
        y_B1H, cache = attention(next_B1H, cache)    # one token more

    Args:
        width: H.
        heads: which must divide the width.
        steps: of the spiking units, under constant current; a rate is one of steps + 1 values.
        spiking: False takes queries, keys and values as they are, to compare with.
        window: how many tokens a token sees, itself included; None: all so far.
        rope: rotate queries and keys by their place; without it positions are learned elsewhere.
        dropout: of attention weights while training.
        lif: options of the spiking units.
    """

    def __init__(
        self,
        width: int,
        heads: int = 8,
        steps: int = 8,
        spiking: bool = True,
        window: int | None = None,
        rope: bool = True,
        dropout: float = 0.0,
        **lif: Any,
    ) -> None:
        super().__init__()
        if heads < 1 or width % heads or (rope and width // heads % 2):
            raise HoldfastError(
                f"attention of width {width} has {heads} heads; choose a number that divides the "
                "width, and with rotary positions leaves an even number of channels"
            )
        if window is not None and window < 1:
            raise HoldfastError(
                f"the attention window is {window} tokens; give at least 1, or none"
            )
        self.steps, self.dropout = steps, dropout
        self.attention = CausalAttention(heads, window, rope)
        self.norm = nn.LayerNorm(width)
        self.query_key_value = attention_linear(width, width, parts=3)
        self.lif = LIF(3 * width, **lif) if spiking else None
        self.out = residual_linear(width, width)

    def forward(self, x_BTH: Tensor, state: Cache | None = None) -> tuple[Tensor, Cache]:
        """The input plus what its tokens take from those before them, and the cache of rates."""
        rates = self.query_key_value(normed(self.norm, x_BTH))
        if self.lif is not None:
            rates = self.lif.constant(rates, self.steps).rate
        attention = self.attention._replace(dropout=self.dropout if self.training else 0.0)
        queries_BTH, keys_BTH, values_BTH = rates.chunk(3, dim=-1)
        mixed_BTH, cached = attention(queries_BTH, keys_BTH, values_BTH, state)
        return x_BTH + self.out(mixed_BTH), cached
