"""What is read off the last block.

B batch, T tokens or time steps, N = B x T, H width, D width before the last layer, V vocabulary, C
classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from ..settings import ModelSettings
from .linear import residual_linear
from .norms import normed

# Logits that are made at a time where only their loss is wanted. With gradients and copies they
# take a quarter of a gigabyte, and keep a device busy.
_AT_A_TIME = 1 << 24


class TextHead(nn.Module):
    """Logits of the next token.

    With tied embeddings the layer before the last ends at the width of the embedding.
    """

    def __init__(self, settings: ModelSettings, vocabulary: int) -> None:
        super().__init__()
        width = settings.hidden_dim
        wide = settings.embedding_dim if settings.tie_embeddings else 2 * width
        self.widen = residual_linear(width, wide)
        self.norm = nn.LayerNorm(wide)
        self.dropout = nn.Dropout(settings.dropout)
        self.last = residual_linear(wide, vocabulary)

    def forward(self, x_BTH: Tensor) -> Tensor:
        """(B, T, V)."""
        return self.last(self._wide(x_BTH))

    def scored(self, x_BTH: Tensor, target_BT: Tensor, smoothing: float = 0.0) -> Tensor:
        """(B, T, 2): the loss of each token, and 1 where the likeliest is the target.

        Many logits are made for some tokens at a time, and once more in backward: what is kept
        does not grow with the vocabulary.
        """
        wide_ND, target_N = self._wide(x_BTH).flatten(0, 1), target_BT.flatten()
        some = max(1, _AT_A_TIME // self.last.out_features)
        if len(target_N) <= some:
            found = self._scored(wide_ND, target_N, smoothing)
        else:
            pairs = zip(wide_ND.split(some), target_N.split(some), strict=True)
            how: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
            found = torch.cat([checkpoint(self._scored, *one, smoothing, **how) for one in pairs])
        return found.view(*target_BT.shape, 2)

    def _wide(self, x_BTH: Tensor) -> Tensor:
        wide = nn.functional.gelu(self.widen(x_BTH))
        return self.dropout(normed(self.norm, wide))

    def _scored(self, wide_ND: Tensor, target_N: Tensor, smoothing: float) -> Tensor:
        kind = wide_ND.device.type
        how = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        # Each part rounds the weights itself, so that gradients are added in full precision.
        with torch.autocast(kind, *how, cache_enabled=False):
            y_NV = self.last(wide_ND).float()
        loss_N = cross_entropy(y_NV, target_N, reduction="none", label_smoothing=smoothing)
        right_N = (y_NV.detach().argmax(-1) == target_N).float()
        return torch.stack((loss_N, right_N), -1)


class ImageHead(nn.Module):
    """Logits of the classes, after the last position."""

    def __init__(self, settings: ModelSettings, classes: int) -> None:
        super().__init__()
        width = settings.hidden_dim
        self.layers = nn.Sequential(
            residual_linear(width, width),
            nn.ReLU(),
            nn.LayerNorm(width),
            nn.Dropout(settings.dropout),
            residual_linear(width, classes),
        )

    def forward(self, x_BTH: Tensor) -> Tensor:
        """(B, C)."""
        return self.layers(x_BTH[:, -1])


class SignalHead(nn.Module):
    """Signals of every time step."""

    def __init__(self, settings: ModelSettings, outputs: int) -> None:
        super().__init__()
        width = settings.hidden_dim
        self.layers = nn.Sequential(
            residual_linear(width, width, gain=1.0),
            nn.Tanh(),
            residual_linear(width, width // 2, gain=1.0),
            nn.Tanh(),
            residual_linear(width // 2, outputs),
        )

    def forward(self, x_BTH: Tensor) -> Tensor:
        """(B, T, outputs)."""
        return self.layers(x_BTH)
