"""The kernels as operators of torch, with gradients; a compiler takes them as they are.

N images, H x W or P places, C channels, K = 4 C. Weights come in full precision.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["depthwise", "respond"]

_EPS = 1e-6
_PRODUCTS = torch.bfloat16


@torch.library.custom_op("holdfast_xec::depthwise", mutates_args=())
def depthwise(x_NHWC: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Depthwise convolution of 7 x 7 cells, channels last, as ``nn.Conv2d`` holds its weights."""
    from .depthwise import convolved

    return convolved(x_NHWC.contiguous(), _taps(weight), bias, _PRODUCTS)


@depthwise.register_fake
def _(x_NHWC: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.empty(x_NHWC.shape, dtype=_PRODUCTS, device=x_NHWC.device)


@torch.library.custom_op("holdfast_xec::depthwise_backward", mutates_args=())
def _depthwise_backward(d_NHWC: Tensor, x_NHWC: Tensor, weight: Tensor) -> list[Tensor]:
    from .depthwise import convolved, filter_gradients

    d_NHWC, x_NHWC = d_NHWC.contiguous(), x_NHWC.contiguous()
    taps = _taps(weight)
    dx_NHWC = convolved(d_NHWC, taps, taps, x_NHWC.dtype, back=True)
    dtaps, dbias = filter_gradients(x_NHWC, d_NHWC)
    return [dx_NHWC, dtaps.t().reshape(weight.shape).contiguous(), dbias.clone()]


@_depthwise_backward.register_fake
def _(d_NHWC: Tensor, x_NHWC: Tensor, weight: Tensor) -> list[Tensor]:
    return [
        torch.empty(x_NHWC.shape, dtype=x_NHWC.dtype, device=x_NHWC.device),
        torch.empty(weight.shape, dtype=torch.float32, device=x_NHWC.device),
        torch.empty(len(weight), dtype=torch.float32, device=x_NHWC.device),
    ]


def _depthwise_keeps(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:2])


def _depthwise_gives(ctx, d_NHWC: Tensor):
    return tuple(_depthwise_backward(d_NHWC, *ctx.saved_tensors))


depthwise.register_autograd(_depthwise_gives, setup_context=_depthwise_keeps)


@torch.library.custom_op("holdfast_xec::respond", mutates_args=())
def respond(
    d: Tensor, x: Tensor, seen: Tensor | None, norm_w: Tensor, norm_b: Tensor, w1: Tensor,
    b1: Tensor, gamma: Tensor, beta: Tensor, w2: Tensor, b2: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """x and what a block makes of mixed neighbours d, (N, places..., C); and g's squares (N, K).

    ``seen``: 1 or 0 per place, 0 where a place is hidden; x is 0 there.
    """
    from .response import applied, squares

    half = _half(norm_w, norm_b, w1, b1, gamma, beta, w2, b2)
    d_NPC = _places(d)
    seen_NP = _seen(seen, d_NPC)
    squares_NK = squares(d_NPC, seen_NP, half, _EPS)
    scale_NK = torch.addcmul(torch.ones_like(gamma), gamma, _share(squares_NK)[0])
    out = applied(d_NPC, _places(x), seen_NP, half, scale_NK, _EPS)
    return out.view(x.shape), squares_NK


@respond.register_fake
def _(d: Tensor, x: Tensor, seen: Tensor | None, norm_w: Tensor, norm_b: Tensor, w1: Tensor,
      b1: Tensor, gamma: Tensor, beta: Tensor, w2: Tensor, b2: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    squares = torch.empty((len(x), len(w1)), dtype=torch.float32, device=x.device)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), squares


@torch.library.custom_op("holdfast_xec::respond_backward", mutates_args=())
def _respond_backward(
    dout: Tensor, d: Tensor, seen: Tensor | None, squares_NK: Tensor, norm_w: Tensor,
    norm_b: Tensor, w1: Tensor, b1: Tensor, gamma: Tensor, beta: Tensor, w2: Tensor, b2: Tensor,
) -> list[Tensor]:  # fmt: skip
    from .response import gradients, toward_share, weight_gradients

    half = _half(norm_w, norm_b, w1, b1, gamma, beta, w2, b2)
    d_NPC, dout_NPC = _places(d), _places(dout)
    seen_NP = _seen(seen, d_NPC)
    share_NK, norm_NK, level_N1 = _share(squares_NK)
    scale_NK = torch.addcmul(torch.ones_like(gamma), gamma, share_NK)
    toward_NK, dw2, db2 = toward_share(d_NPC, dout_NPC, seen_NP, half, scale_NK, _EPS)
    dshare_NK = gamma * toward_NK
    dnorm_NK = (dshare_NK - (dshare_NK * share_NK).mean(1, keepdim=True)) / level_N1
    pull_NK = torch.where(norm_NK > 0, dnorm_NK / norm_NK, 0.0)
    about = (d_NPC, dout_NPC, seen_NP, half, scale_NK, pull_NK, _EPS)
    (dd, dnorm), (dw1, db1) = gradients(*about), weight_gradients(*about)
    dw2 += db2.unsqueeze(1) * beta
    dbeta = (w2 * db2.unsqueeze(1)).sum(0)  # a product by mv would be rounded by autocast
    dgamma = (toward_NK * share_NK).sum(0)
    return [dd.view(d.shape), dnorm[0].clone(), dnorm[1].clone(), dw1, db1, dgamma, dbeta, dw2, db2]


@_respond_backward.register_fake
def _(dout: Tensor, d: Tensor, seen: Tensor | None, squares_NK: Tensor, norm_w: Tensor,
      norm_b: Tensor, w1: Tensor, b1: Tensor, gamma: Tensor, beta: Tensor, w2: Tensor, b2: Tensor,
) -> list[Tensor]:  # fmt: skip
    like = (norm_w, norm_b, w1, b1, gamma, beta, w2, b2)
    return [torch.empty(d.shape, dtype=d.dtype, device=d.device)] + [
        torch.empty(one.shape, dtype=torch.float32, device=d.device) for one in like
    ]


def _respond_keeps(ctx, inputs, output) -> None:
    d, _, seen, *weights = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(d, seen, output[1], *weights)


def _respond_gives(ctx, dout: Tensor, _dsquares: Tensor | None):
    dd, *weights = _respond_backward(dout, *ctx.saved_tensors)
    return dd, dout, None, *weights


respond.register_autograd(_respond_gives, setup_context=_respond_keeps)


def _taps(weight: Tensor) -> Tensor:
    return weight.flatten(1).t().contiguous()


def _places(x: Tensor) -> Tensor:
    return x.contiguous().view(len(x), -1, x.shape[-1])


def _seen(seen: Tensor | None, d_NPC: Tensor) -> Tensor:
    """(N, P); where nothing is hidden, a single 1 with strides of 0."""
    if seen is None:
        return torch.ones(1, device=d_NPC.device).expand(d_NPC.shape[:2])
    return seen.float().contiguous().view(len(seen), -1)


def _half(
    norm_w: Tensor, norm_b: Tensor, w1: Tensor, b1: Tensor, gamma: Tensor, beta: Tensor,
    w2: Tensor, b2: Tensor,
):  # fmt: skip
    from .response import Half

    return Half(norm_w, norm_b, w1.to(_PRODUCTS), b1, gamma, beta, w2.to(_PRODUCTS), b2)


def _share(squares_NK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Share and norm of each wide channel, and the mean norm of each image."""
    norm_NK = squares_NK.sqrt()
    level_N1 = norm_NK.mean(1, keepdim=True) + _EPS
    return norm_NK / level_N1, norm_NK, level_N1
