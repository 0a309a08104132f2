"""The noise of all steps as one Triton kernel."""

# Triton is there only where it can be used, and makes something else of its functions.
# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["noise"]

_GOLDEN = tl.constexpr(-7046029254386353131)
_FIRST = tl.constexpr(-4658895280553007687)
_SECOND = tl.constexpr(-7723592293110705685)
_ANGLE = tl.constexpr(2 * 3.141592653589793 / 4294967296)


@triton.jit
def _mixed(word):
    word = (word ^ ((word >> 30) & ((1 << 34) - 1))) * _FIRST
    word = (word ^ ((word >> 27) & ((1 << 37) - 1))) * _SECOND
    return word ^ ((word >> 31) & ((1 << 33) - 1))


@triton.jit
def _radius_angle(word):
    low: tl.constexpr = 0xFFFFFFFF
    share = ((word >> 32) & low).to(tl.float64)
    share = (share + tl.full([], 0.5, tl.float64)) * tl.full([], 1 / 4294967296, tl.float64)
    angle = (word & low).to(tl.float64) * tl.full([], _ANGLE, tl.float64)
    return tl.sqrt(-2 * tl.log(share)), angle


@triton.jit
def _noise_kernel(stream, sigma, out, first, flows, BLOCK: tl.constexpr):
    t = tl.program_id(1)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = row < flows
    begin = tl.load(stream + t)
    pair = 2 * (row + first).to(tl.int64)
    radius, angle = _radius_angle(_mixed(pair * _GOLDEN + begin))
    x = (radius * tl.cos(angle)).to(tl.float32) * tl.load(sigma)
    y = (radius * tl.sin(angle)).to(tl.float32) * tl.load(sigma + 1)
    radius, angle = _radius_angle(_mixed((pair + 1) * _GOLDEN + begin))
    z = (radius * tl.cos(angle)).to(tl.float32) * tl.load(sigma + 2)
    base = out + t.to(tl.int64) * 3 * flows + row
    tl.store(base, x, mask=mask)
    tl.store(base + flows, y, mask=mask)
    tl.store(base + 2 * flows, z, mask=mask)


def noise(stream_T: Tensor, sigma_3: Tensor, first: int, flows: int) -> Tensor:
    """See ``reference.noise``."""
    steps = stream_T.shape[0]
    out = torch.empty(steps, 3, flows, device=stream_T.device)
    _noise_kernel[(triton.cdiv(flows, 128), steps)](
        stream_T, sigma_3.contiguous(), out, first, flows, BLOCK=128, num_warps=4
    )
    return out
