"""Linear layers with the initialisation of the family, and one kernel where rows are few."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..kernels import ops
from ..kernels.choice import takes

_FEW = 16  # rows: where tokens are written, not trained


def few(kind: str, x: Tensor) -> bool:
    """Whether a kernel for few rows without a gradient is taken."""
    # The number of rows comes last: asking for it would fix it in an export.
    exact = not torch.is_grad_enabled() and not torch.is_autocast_enabled(x.device.type)
    return exact and takes(kind, x) and x.numel() <= _FEW * x.shape[-1]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``F.linear``; few rows without a gradient are one kernel."""
    if few("rows", x):
        y = ops.rows(x.reshape(-1, x.shape[-1]), weight, bias)
        return y.view(*x.shape[:-1], len(weight))
    return nn.functional.linear(x, weight, bias)


class Linear(nn.Linear):
    """``nn.Linear`` by ``linear``."""

    def forward(self, input: Tensor) -> Tensor:
        """Inputs times weights."""
        return linear(input, self.weight, self.bias)


def zero_linear(inputs: int, outputs: int, *, bias: bool = True) -> Linear:
    """Linear layer of zeros: a path that is closed at the start and opens by its gradient."""
    layer = Linear(inputs, outputs, bias=bias)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def he_linear(inputs: int, outputs: int, *, bias: bool = True) -> Linear:
    """Linear layer with He-normal weights and zero biases."""
    layer = zero_linear(inputs, outputs, bias=bias)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return layer


def residual_linear(inputs: int, outputs: int, *, bias: bool = True, gain: float = 0.1) -> Linear:
    """The end of a residual branch: Xavier-normal, small, so that a new block changes little."""
    layer = zero_linear(inputs, outputs, bias=bias)
    nn.init.xavier_normal_(layer.weight, gain=gain)
    return layer


def attention_linear(inputs: int, outputs: int, parts: int = 1) -> Linear:
    """Queries, keys or values, or ``parts`` of them beside each other: each Xavier-normal."""
    layer = zero_linear(inputs, parts * outputs)
    for part in layer.weight.detach().chunk(parts):
        nn.init.xavier_normal_(part)
    return layer


def inverse_softplus(y: Tensor) -> Tensor:
    """x with softplus(x) = y, exact for small y too."""
    return y + torch.log(-torch.expm1(-y))
