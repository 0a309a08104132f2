"""Decoders that read features back out of spike trains (S, B, T, K)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast import HoldfastError

from ..linear import he_linear

_BUCKET_WIDTH = 4
"""Numbers that say when a unit first fired; a guess."""


class _Rate(nn.Module):
    """Mean over the steps."""

    def __init__(self, units: int, steps: int, width: int) -> None:
        super().__init__()
        self.read = nn.Sequential(he_linear(units, width), nn.LayerNorm(width))

    def forward(self, train_SBTK: Tensor, rate_BTK: Tensor) -> Tensor:
        return self.read(rate_BTK)


class _Temporal(nn.Module):
    """Exponentially weighted sum over the steps, the last one weighing most."""

    def __init__(self, units: int, steps: int, width: int) -> None:
        super().__init__()
        weights = torch.exp((torch.arange(steps) - steps + 1) / max(1.0, steps / 2))
        self.register_buffer("weights_S", weights / weights.sum(), persistent=False)
        self.read = he_linear(units, width)

    def forward(self, train_SBTK: Tensor, rate_BTK: Tensor) -> Tensor:
        weights = self.get_buffer("weights_S").to(train_SBTK.dtype)
        return self.read(torch.tensordot(weights, train_SBTK, dims=1))


class _FirstSpike(nn.Module):
    """Step of the first spike, or a bucket of its own for units that stay silent.

    The step has no gradient: this decoder trains itself and not the encoder.
    """

    def __init__(self, units: int, steps: int, width: int) -> None:
        super().__init__()
        self.silent = steps
        self.buckets = nn.Embedding(steps + 1, _BUCKET_WIDTH)
        self.read = he_linear(units * _BUCKET_WIDTH, width)

    def forward(self, train_SBTK: Tensor, rate_BTK: Tensor) -> Tensor:
        fired = train_SBTK > 0
        first = fired.to(torch.uint8).argmax(0).masked_fill(~fired.any(0), self.silent)
        return self.read(self.buckets(first).flatten(-2))


class _Probabilistic(nn.Module):
    """Rate read-out with noise, in training, as wide as the spikes vary over the steps."""

    def __init__(self, units: int, steps: int, width: int) -> None:
        super().__init__()
        self.read, self.spread = he_linear(units, width), he_linear(units, width)

    def forward(self, train_SBTK: Tensor, rate_BTK: Tensor) -> Tensor:
        y = self.read(rate_BTK)
        if not self.training:
            return y
        # The small number keeps the gradient of the root finite where a unit never changes.
        deviation = (train_SBTK.var(0, correction=0) + 1e-6).sqrt()
        return y + F.softplus(self.spread(deviation)) * torch.randn_like(y)


class _Hybrid(nn.Module):
    """Half a learned mean of three decoders, half a two-layer fusion of them."""

    def __init__(self, units: int, steps: int, width: int) -> None:
        super().__init__()
        kinds = (_Rate, _Temporal, _FirstSpike)
        self.parts = nn.ModuleList(kind(units, steps, width) for kind in kinds)
        self.weights = nn.Parameter(torch.zeros(len(kinds)))
        self.fusion = nn.Sequential(
            he_linear(len(kinds) * width, width), nn.GELU(), he_linear(width, width)
        )

    def forward(self, train_SBTK: Tensor, rate_BTK: Tensor) -> Tensor:
        read = [part(train_SBTK, rate_BTK) for part in self.parts]
        weights = torch.softmax(self.weights, 0)
        mean = torch.stack([w * y for w, y in zip(weights.unbind(), read, strict=True)]).sum(0)
        return (mean + self.fusion(torch.cat(read, -1))) / 2


METHODS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "rate": _Rate,
    "temporal": _Temporal,
    "first_spike": _FirstSpike,
    "probabilistic": _Probabilistic,
    "hybrid": _Hybrid,
}


class SpikeDecoder(nn.Module):
    """Decoder of one of the five ``METHODS``: trains (S, B, T, K) to features (B, T, H)."""

    def __init__(self, method: str, units: int, steps: int, width: int) -> None:
        super().__init__()
        if method not in METHODS:
            raise HoldfastError(
                f"There is no spike decoder {method!r}; choose one of {', '.join(METHODS)}."
            )
        self.steps, self.units = steps, units
        self.decoder = METHODS[method](units, steps, width)

    def forward(self, train_SBTK: Tensor, rate_BTK: Tensor | None = None) -> Tensor:
        """Features y_BTH; ``rate_BTK`` is the mean over the steps where that is known already."""
        shape = train_SBTK.shape
        assert len(shape) == 4 and (shape[0], shape[3]) == (self.steps, self.units), (
            f"spike train is {tuple(shape)}, not ({self.steps}, B, T, {self.units})"
        )
        return self.decoder(train_SBTK, train_SBTK.mean(0) if rate_BTK is None else rate_BTK)
