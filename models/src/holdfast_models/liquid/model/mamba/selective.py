"""The selective state-space recurrence of Mamba: plain loop, scan, and one kernel.

    h_t = exp(delta_t a) * h_{t-1} + (delta_t x_t) outer b_t        y_t = h_t c_t

Shape suffixes: B batch, T tokens, D channels, N states per channel.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...kernels import ops
from ...kernels.choice import takes
from ...scan import scan

_SEGMENT = 256  # tokens; bounds the (B, T, D, N) tensors that exist at a time


def selective_loop(
    x_BTD: Tensor, delta_BTD: Tensor, b_BTN: Tensor, c_BTN: Tensor, a_DN: Tensor, h_BDN: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs and last state, token by token: the reference for everything faster."""
    outputs = []
    tokens = zip(*(of.unbind(1) for of in (x_BTD, delta_BTD, b_BTN, c_BTN)), strict=True)
    for x_BD, delta_BD, b_BN, c_BN in tokens:
        decay_BDN = torch.exp(delta_BD[..., None] * a_DN)
        h_BDN = decay_BDN * h_BDN + (delta_BD * x_BD)[..., None] * b_BN[:, None]
        outputs.append((h_BDN * c_BN[:, None]).sum(-1))
    return torch.stack(outputs, dim=1), h_BDN


def selective_scan(
    x_BTD: Tensor,
    delta_BTD: Tensor,
    b_BTN: Tensor,
    c_BTN: Tensor,
    a_DN: Tensor,
    h_BDN: Tensor,
    form: str = "chunk",
) -> tuple[Tensor, Tensor]:
    """The same by a parallel scan (``form`` as in ``scan``), in segments of the sequence.

    The states of all tokens, (B, T, D, N), are far larger than inputs and outputs. Only those at
    the ends of segments are kept for the backward pass; the others are computed again.
    """
    if form == "chunk" and takes("selective", x_BTD, *a_DN.shape):
        return _Fused.apply(x_BTD, delta_BTD, b_BTN, c_BTN, a_DN, h_BDN)[:2]
    if x_BTD.shape[1] <= _SEGMENT:
        return _segment(x_BTD, delta_BTD, b_BTN, c_BTN, a_DN, h_BDN, form)
    outputs = []
    split = (of.split(_SEGMENT, dim=1) for of in (x_BTD, delta_BTD, b_BTN, c_BTN))
    for parts in zip(*split, strict=True):
        y_BSD, h_BDN = _Segment.apply(*parts, a_DN, h_BDN, form)
        outputs.append(y_BSD)
    return torch.cat(outputs, dim=1), h_BDN


def _segment(
    x: Tensor, delta: Tensor, b: Tensor, c: Tensor, a_DN: Tensor, h_BDN: Tensor, form: str
) -> tuple[Tensor, Tensor]:
    decay_BTDN = torch.exp(delta[..., None] * a_DN)
    h_BTDN = scan(decay_BTDN, (delta * x)[..., None] * b[:, :, None], h_BDN, form=form)
    return (h_BTDN @ c[..., None]).squeeze(-1), h_BTDN[:, -1]


class _Segment(torch.autograd.Function):
    """A segment that keeps its inputs only; unlike torch's checkpoint it allows ``torch.func``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        return _segment(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.form = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        again = partial(_segment, form=ctx.form)
        return (*torch.func.vjp(again, *ctx.saved_tensors)[1](grads), None)


class _Fused(torch.autograd.Function):
    """Two kernels, which keep a state of every 64th token."""

    @staticmethod
    def forward(
        x: Tensor, delta: Tensor, b: Tensor, c: Tensor, a: Tensor, h: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return ops.selective(x, delta, b, c, a, h)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*inputs[:5], output[2])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return ops.selective_backward(*ctx.saved_tensors, *grads[:2])
