"""Backward of a recurrence, apart from its forward: one short loop over the tokens in reverse.

A cell computes its states without a graph, then all of them again at once from the states before
each, taken as constants. What is missing is how a gradient goes from a state to the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...kernels import ops
from ...kernels.choice import takes
from ..precision import no_autocast


def fits(x: Tensor, units: int, weights: Sequence[Tensor]) -> bool:
    """Whether the kernel takes a cell of four gates with these weights behind its first layer."""
    width = weights[0].shape[1] if weights else 0
    sizes = [1 << (size - 1).bit_length() for size in (units, width or units)]
    small = sizes[0] * sizes[1] <= ops.MOST
    return len(weights) < 2 and small and takes("cfc", x, units, width)


class ThroughTime(torch.autograd.Function):
    """Identity on states; the gradient of every state collects those of all states after it.

    Between two states lie, last to first, the ``slopes`` of the state by the sums of its gates
    (B, T, gates, U), then for every hidden layer its weight (out, in) and the slopes of its
    activation (B, T, in), then the weight ``by_state`` (in, U) that the state before meets.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        states: Tensor, start: Tensor, slopes: Tensor, by_state: Tensor, *layers: Tensor
    ) -> Tensor:
        """The states themselves."""
        # A view would do, but torch.compile takes a view for its base and drops this backward.
        return states.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Keep all but the states."""
        ctx.save_for_backward(*inputs[2:])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Last token first: own gradient, and what the states after it hand back."""
        slopes, by_state, *layers = ctx.saved_tensors
        weights, nothing = layers[::2], [None] * (2 + len(layers))
        if slopes.shape[2] == 4 and fits(grads[0], slopes.shape[3], weights):
            later = layers or (None, None)
            return *ops.cfc_backward(grads[0], slopes, by_state, *later), *nothing
        hidden = [slope.unbind(1) for slope in layers[1::2]]
        totals, later = [], torch.zeros_like(grads[0][:, 0])
        tokens = list(zip(grads[0].unbind(1), slopes.unbind(1), *hidden, strict=True))
        with no_autocast(later):
            for grad, slope, *inner in reversed(tokens):
                later = grad + later
                totals.append(later)
                later = (slope * later.unsqueeze(1)).flatten(1)
                for weight, slope in zip(reversed(weights), reversed(inner), strict=True):
                    later = (later @ weight) * slope
                later = later @ by_state
        return torch.stack(totals[::-1], 1), later, *nothing
