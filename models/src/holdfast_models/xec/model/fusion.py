"""The transformer that lets the faces see each other.

B events, T tokens, D width, A heads, E = D / A.
"""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["Fusion"]

_HEADS = 8


class Fusion(nn.Module):
    """Encoder layers, one after the other."""

    def __init__(self, width: int, feedforward: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(width, feedforward, dropout) for _ in range(layers))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The tokens, each informed by the others."""
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        return x_BTD


class _Layer(nn.Module):
    """What ``nn.TransformerEncoderLayer`` computes with norms after the sums and GELU.

    Written out because that one switches to another implementation in evaluation, which neither
    compiles nor exports.
    """

    def __init__(self, width: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, feedforward)
        self.narrow = nn.Linear(feedforward, width)
        self.feedforward_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        nn.init.xavier_uniform_(self.query_key_value.weight)
        nn.init.zeros_(self.query_key_value.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = self.attention_norm(x_BTD + self.dropout(self._attended(x_BTD)))
        wide_BTF = self.dropout(nn.functional.gelu(self.widen(x_BTD)))
        return self.feedforward_norm(x_BTD + self.dropout(self.narrow(wide_BTF)))

    def _attended(self, x_BTD: Tensor) -> Tensor:
        parts_3BATE = (
            self.query_key_value(x_BTD).unflatten(-1, (3, _HEADS, -1)).permute(2, 0, 3, 1, 4)
        )
        dropout = self.dropout.p if self.training else 0.0
        read_BATE = nn.functional.scaled_dot_product_attention(
            *parts_3BATE.unbind(0), dropout_p=dropout
        )
        return self.out(read_BATE.transpose(1, 2).flatten(2))
