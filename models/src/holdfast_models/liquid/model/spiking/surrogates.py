"""Surrogate gradients: a hard step forward, a bump around the threshold backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from holdfast import HoldfastError


class Surrogate(NamedTuple):
    """dz/dv as a function of v and the slope, and the slope that is usual for it."""

    derivative: Callable[[Tensor, Tensor], Tensor]
    slope: float


SURROGATES = {
    "fast_sigmoid": Surrogate(lambda v, k: 1 / (1 + k * v.abs()).square(), 25.0),
    "atan": Surrogate(lambda v, a: a / 2 / (1 + (math.pi / 2 * a * v).square()), 2.0),
    "sigmoid": Surrogate(lambda v, k: k * torch.sigmoid(k * v) * torch.sigmoid(-k * v), 25.0),
    "triangle": Surrogate(lambda v, g: g * (1 - v.abs()).clamp(min=0), 0.3),
}


def surrogate_of(name: str) -> Surrogate:
    """The surrogate of this name."""
    if name not in SURROGATES:
        raise HoldfastError(
            f"There is no surrogate gradient {name!r}; choose one of {', '.join(SURROGATES)}."
        )
    return SURROGATES[name]


def spike(v: Tensor, name: str = "fast_sigmoid", slope: Tensor | float | None = None) -> Tensor:
    """1 where ``v``, membrane less threshold, is above 0; the gradient is the surrogate's."""
    surrogate = surrogate_of(name)
    slope = surrogate.slope if slope is None else slope
    if not isinstance(slope, Tensor):
        slope = v.new_full((), slope)
    return _Spike.apply(v, slope, surrogate.derivative)


class _Spike(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(v: Tensor, slope: Tensor, derivative: Callable[..., Tensor]) -> Tensor:
        return (v > 0).to(v.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        v, slope, ctx.derivative = inputs
        ctx.save_for_backward(v, slope)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0] * ctx.derivative(*ctx.saved_tensors), None, None
