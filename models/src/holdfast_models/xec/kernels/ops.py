"""The kernels as operators of torch, with gradients; a compiler takes them as they are.

N images, H x W or P places, C channels, K = 4 C. Weights come in full precision.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["convnext"]

_EPS = 1e-6
_PRODUCTS = torch.bfloat16


@torch.library.custom_op("holdfast_xec::convnext", mutates_args=())
def convnext(
    x: Tensor, seen: Tensor | None, conv_w: Tensor, conv_b: Tensor, norm_w: Tensor, norm_b: Tensor,
    w1: Tensor, b1: Tensor, gamma: Tensor, beta: Tensor, w2: Tensor, b2: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """A ConvNeXt block on images (N, H, W, C); also the squares of its wide numbers (N, K), and d.

    ``seen``: 1 or 0 per place, 0 where a place is hidden; x is 0 there.
    """
    from .depthwise import convolved

    x = x.contiguous()
    d = convolved(x, conv_w, conv_b, _PRODUCTS)
    return *_respond(d, x, seen, norm_w, norm_b, w1, b1, gamma, beta, w2, b2), d


@convnext.register_fake
def _(x: Tensor, seen: Tensor | None, conv_w: Tensor, conv_b: Tensor, norm_w: Tensor,
      norm_b: Tensor, w1: Tensor, b1: Tensor, gamma: Tensor, beta: Tensor, w2: Tensor, b2: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return *_shaped(x, w1), torch.empty(x.shape, dtype=_PRODUCTS, device=x.device)


@torch.library.custom_op("holdfast_xec::convnext_backward", mutates_args=())
def _convnext_backward(
    dout: Tensor, x: Tensor, d: Tensor, seen: Tensor | None, squares_NK: Tensor, conv_w: Tensor,
    norm_w: Tensor, norm_b: Tensor, w1: Tensor, b1: Tensor, gamma: Tensor, beta: Tensor,
    w2: Tensor, b2: Tensor,
) -> list[Tensor]:  # fmt: skip
    from .depthwise import convolved_back, filter_gradient

    dout = dout.contiguous()
    dd, dconv_b, *weights = _responded(
        dout, d, seen, squares_NK, norm_w, norm_b, w1, b1, gamma, beta, w2, b2
    )
    dconv_w = filter_gradient(x, dd, conv_w)
    return [convolved_back(dd, conv_w, dout), dconv_w, dconv_b, *weights]


@_convnext_backward.register_fake
def _(dout: Tensor, x: Tensor, d: Tensor, seen: Tensor | None, squares_NK: Tensor, conv_w: Tensor,
      norm_w: Tensor, norm_b: Tensor, w1: Tensor, b1: Tensor, gamma: Tensor, beta: Tensor,
      w2: Tensor, b2: Tensor,
) -> list[Tensor]:  # fmt: skip
    of_x = torch.empty(dout.shape, dtype=dout.dtype, device=x.device)
    weights = (conv_w, norm_w, norm_w, norm_b, w1, b1, gamma, beta, w2, b2)
    return [of_x, *_gradients_of(weights)]


def _convnext_keeps(ctx, inputs, output) -> None:
    x, seen, conv_w, _, *weights = inputs
    _, squares_NK, d = output
    ctx.mark_non_differentiable(squares_NK, d)
    ctx.save_for_backward(x, d, seen, squares_NK, conv_w, *weights)


def _convnext_gives(ctx, dout: Tensor, _dsquares: Tensor | None, _dd: Tensor | None):
    dx, *weights = _convnext_backward(dout, *ctx.saved_tensors)
    return dx, None, *weights


convnext.register_autograd(_convnext_gives, setup_context=_convnext_keeps)


def _respond(d: Tensor, x: Tensor, seen: Tensor | None, *weights: Tensor) -> tuple[Tensor, Tensor]:
    from .response import applied, squares

    half, d_NPC = _half(*weights), _places(d)
    seen_NP = _seen(seen, d_NPC)
    squares_NK = squares(d_NPC, seen_NP, half, _EPS)
    scale_NK = _scale(half.gamma, _share(squares_NK)[0])
    out = applied(d_NPC, _places(x), seen_NP, half, scale_NK, _EPS)
    return out.view(x.shape), squares_NK


def _responded(
    dout: Tensor, d: Tensor, seen: Tensor | None, squares_NK: Tensor, *given: Tensor
) -> list[Tensor]:
    """Gradients of d, their sum, and gradients of the weights."""
    from .response import gradients, toward_share, weight_gradients

    half, d_NPC, dout_NPC = _half(*given), _places(d), _places(dout)
    gamma, beta, w2 = given[4:7]
    seen_NP = _seen(seen, d_NPC)
    share_NK, norm_NK, level_N1 = _share(squares_NK)
    scale_NK = _scale(gamma, share_NK)
    toward_NK, dw2, db2 = toward_share(d_NPC, dout_NPC, seen_NP, half, scale_NK, _EPS)
    dshare_NK = gamma * toward_NK
    dnorm_NK = (dshare_NK - (dshare_NK * share_NK).mean(1, keepdim=True)) / level_N1
    pull_NK = torch.where(norm_NK > 0, dnorm_NK / norm_NK, 0.0)
    about = (d_NPC, dout_NPC, seen_NP, half, scale_NK, pull_NK, _EPS)
    (dd, sums), (dw1, db1) = gradients(*about), weight_gradients(*about)
    dnorm_w, dnorm_b, total = (one.clone() for one in sums)  # operators give no views
    dw2 += db2.unsqueeze(1) * beta
    dbeta = (w2 * db2.unsqueeze(1)).sum(0)  # a product by mv would be rounded by autocast
    dgamma = (toward_NK * share_NK).sum(0)
    weights = dnorm_w, dnorm_b, dw1, db1, dgamma, dbeta, dw2, db2
    return [dd.view(d.shape), total, *weights]


def _shaped(x: Tensor, w1: Tensor) -> tuple[Tensor, Tensor]:
    squares_NK = torch.empty((len(x), len(w1)), dtype=torch.float32, device=x.device)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), squares_NK


def _gradients_of(weights: Iterable[Tensor]) -> list[Tensor]:
    return [torch.empty(one.shape, dtype=torch.float32, device=one.device) for one in weights]


def _scale(gamma: Tensor, share_NK: Tensor) -> Tensor:
    return torch.addcmul(torch.ones_like(gamma), gamma, share_NK)


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
    from .response import BlockHalf

    return BlockHalf(norm_w, norm_b, w1.to(_PRODUCTS), b1, gamma, beta, w2.to(_PRODUCTS), b2)


def _share(squares_NK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Share and norm of each wide channel, and the mean norm of each image."""
    norm_NK = squares_NK.sqrt()
    level_N1 = norm_NK.mean(1, keepdim=True) + _EPS
    return norm_NK / level_N1, norm_NK, level_N1
