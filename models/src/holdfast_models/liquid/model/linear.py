"""Linear layers with the initialisation of the family."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def zero_linear(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """Linear layer of zeros: a path that is closed at the start and opens by its gradient."""
    linear = nn.Linear(inputs, outputs, bias=bias)
    for parameter in linear.parameters():
        nn.init.zeros_(parameter)
    return linear


def he_linear(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """Linear layer with He-normal weights and zero biases."""
    linear = zero_linear(inputs, outputs, bias=bias)
    nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
    return linear


def residual_linear(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """The end of a residual branch: Xavier-normal, small, so that a new block changes little."""
    linear = zero_linear(inputs, outputs, bias=bias)
    nn.init.xavier_normal_(linear.weight, gain=0.1)
    return linear


def attention_linear(inputs: int, outputs: int, parts: int = 1) -> nn.Linear:
    """Queries, keys or values, or ``parts`` of them beside each other: each Xavier-normal."""
    linear = zero_linear(inputs, parts * outputs)
    for part in linear.weight.detach().chunk(parts):
        nn.init.xavier_normal_(part)
    return linear


def inverse_softplus(y: Tensor) -> Tensor:
    """x with softplus(x) = y, exact for small y too."""
    return y + torch.log(-torch.expm1(-y))
