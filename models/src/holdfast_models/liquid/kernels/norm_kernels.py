"""A layer norm of few rows with what comes behind it, in Triton: ``norms.normed``.

R rows, H channels. One program has one row.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _norm_kernel(
    x, weight, bias, base, y, channels, eps, share,
    GELU: tl.constexpr, BASE: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, BH)
    there = h < channels
    at = row * channels + h
    given = tl.load(x + at, mask=there, other=0.0)
    mean = tl.sum(given, 0) / channels
    apart = tl.where(there, given - mean, 0.0)
    scale = tl.rsqrt(tl.sum(apart * apart, 0) / channels + eps)
    found = apart * scale * tl.load(weight + h, mask=there, other=0.0)
    found += tl.load(bias + h, mask=there, other=0.0)
    if GELU:
        found = 0.5 * found * (1.0 + tl.erf(found * 0.7071067811865476))
    if BASE:
        found = tl.load(base + at, mask=there, other=0.0) + share * found
    tl.store(y + at, found, mask=there)


def norm(
    x_RH: Tensor,
    weight_H: Tensor,
    bias_H: Tensor,
    base_RH: Tensor | None,
    eps: float,
    share: float,
    act: bool,
) -> Tensor:
    """The norm, GELU of it where ``act``, and where there is a base, that plus a share of it."""
    x_RH = x_RH.contiguous()
    y_RH = torch.empty_like(x_RH)
    rows, channels = x_RH.shape
    wide = triton.next_power_of_2(channels)
    _norm_kernel[(rows,)](
        x_RH, weight_H, bias_H, x_RH if base_RH is None else base_RH.contiguous(), y_RH,
        channels, eps, share,
        GELU=act, BASE=base_RH is not None, BH=wide, num_warps=1 if wide <= 256 else 4,
    )  # fmt: skip
    return y_RH
