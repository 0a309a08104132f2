"""The collection in Triton: one kernel forward and one backward, instead of about a hundred.

N flows, B batch, S cells, X = B·S. As ``model.collection.collect`` with bilinear shares, without
taking the largest weight out of the exponent: no weight is above 4·(1 + T/10), so that this is
exact up to rounding for T up to ``modes.fused.MOST_STEPS``.
"""

# Triton is there only where it can be used, and makes something else of its functions.
# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..model.collection import Collected
from ..model.settings import LatticeSettings

__all__ = ["collect"]

_BLOCK = 128


@triton.jit
def _corner(x, y, width, height):
    x = (x + 1) / 2 * (width - 1)
    y = (y + 1) / 2 * (height - 1)
    left = tl.minimum(tl.maximum(tl.floor(x), 0.0), width - 2.0)
    low = tl.minimum(tl.maximum(tl.floor(y), 0.0), height - 2.0)
    left, low = tl.where(left == left, left, 0.0), tl.where(low == low, low, 0.0)
    x, y = x - left, y - low
    return low.to(tl.int32) * width + left.to(tl.int32), x, y


@triton.jit
def _limited(x):
    return tl.where(x < 0, 0.0, tl.where(x > 1, 1.0, x))


@triton.jit
def _add(sums, cells, at, part, energy, mask):
    tl.atomic_add(sums + at, part * energy, mask=mask, sem="relaxed")
    tl.atomic_add(sums + cells + at, part, mask=mask, sem="relaxed")


@triton.jit
def _splat_kernel(e, p, k, sample, got, sums, flows, cells, width, height, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = row < flows
    mask = there & (tl.load(got + row, mask=there, other=0) != 0)
    energy = tl.load(e + row, mask=mask, other=0.0)
    pz = tl.load(p + 2 * flows + row, mask=mask, other=0.0)
    px = tl.load(p + row, mask=mask, other=0.0)
    py = tl.load(p + flows + row, mask=mask, other=0.0)
    steps = tl.load(k + row, mask=mask, other=0).to(tl.float32)
    near = tl.minimum(tl.abs(pz + 1), tl.abs(pz - 1))
    strong = tl.exp(tl.abs(energy) / (1 + near) * (1 + 0.1 * steps))
    at, x, y = _corner(px, py, width, height)
    x, y = _limited(x), _limited(y)
    at += tl.load(sample + row, mask=mask, other=0).to(tl.int32) * (width * height)
    _add(sums, cells, at, strong * (1 - x) * (1 - y), energy, mask)
    _add(sums, cells, at + 1, strong * x * (1 - y), energy, mask)
    _add(sums, cells, at + width, strong * (1 - x) * y, energy, mask)
    _add(sums, cells, at + width + 1, strong * x * y, energy, mask)


@triton.jit
def _cell(surface, total, dsurface, at, strong, energy, mask):
    whole = tl.load(total + at, mask=mask, other=0.0)
    rate = tl.load(dsurface + at, mask=mask, other=0.0) / tl.where(whole != 0, whole, 1.0)
    rate = tl.where(whole != 0, rate * strong, 0.0)
    return rate, rate * (energy - tl.load(surface + at, mask=mask, other=0.0))


@triton.jit
def _gather_kernel(
    e, p, k, sample, got, surface, total, dsurface, de, dp, flows, width, height,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = row < flows
    mask = there & (tl.load(got + row, mask=there, other=0) != 0)
    energy = tl.load(e + row, mask=mask, other=0.0)
    px = tl.load(p + row, mask=mask, other=0.0)
    py = tl.load(p + flows + row, mask=mask, other=0.0)
    pz = tl.load(p + 2 * flows + row, mask=mask, other=0.0)
    steps = tl.load(k + row, mask=mask, other=0).to(tl.float32)
    below, above = tl.abs(pz + 1), tl.abs(pz - 1)
    near = tl.minimum(below, above)
    grown = (1 + 0.1 * steps) / (1 + near)
    strong = tl.exp(tl.abs(energy) * grown)
    at, x, y = _corner(px, py, width, height)
    inside_x, inside_y = (x >= 0) & (x <= 1), (y >= 0) & (y <= 1)
    x, y = _limited(x), _limited(y)
    at += tl.load(sample + row, mask=mask, other=0).to(tl.int32) * (width * height)
    r0, a0 = _cell(surface, total, dsurface, at, strong, energy, mask)
    r1, a1 = _cell(surface, total, dsurface, at + 1, strong, energy, mask)
    r2, a2 = _cell(surface, total, dsurface, at + width, strong, energy, mask)
    r3, a3 = _cell(surface, total, dsurface, at + width + 1, strong, energy, mask)
    s0, s1, s2, s3 = (1 - x) * (1 - y), x * (1 - y), (1 - x) * y, x * y
    by_e = r0 * s0 + r1 * s1 + r2 * s2 + r3 * s3
    by_weight = a0 * s0 + a1 * s1 + a2 * s2 + a3 * s3
    by_x = (a1 - a0) * (1 - y) + (a3 - a2) * y
    by_y = (a2 - a0) * (1 - x) + (a3 - a1) * x
    side = tl.where(below < above, 1.0, tl.where(below > above, -1.0, 0.0))
    side = tl.where(near == 0, 0.0, side)
    sign = tl.where(energy > 0, 1.0, tl.where(energy < 0, -1.0, 0.0))
    tl.store(de + row, tl.where(mask, by_e + by_weight * grown * sign, 0.0), mask=there)
    tl.store(dp + row, tl.where(mask & inside_x, by_x * ((width - 1) / 2), 0.0), mask=there)
    tl.store(
        dp + flows + row, tl.where(mask & inside_y, by_y * ((height - 1) / 2), 0.0), mask=there
    )
    by_z = -by_weight * tl.abs(energy) * grown / (1 + near) * side
    tl.store(dp + 2 * flows + row, tl.where(mask, by_z, 0.0), mask=there)


def collect(
    e_N: Tensor,
    p_N3: Tensor,
    k_N: Tensor,
    sample_N: Tensor,
    done_N: Tensor,
    lattice: LatticeSettings,
    batch: int,
) -> Collected:
    """Gathers both faces on one surface; see ``model.collection.collect``."""
    sizes = (lattice.width, lattice.height, batch)
    surface_BS, total_BS = _Collect.apply(e_N, p_N3.t(), k_N, sample_N, done_N, sizes)
    return Collected(surface_BS, total_BS != 0)


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, e_N: Tensor, p_3N: Tensor, k_N: Tensor, sample_N: Tensor, got_N: Tensor,
        sizes: tuple[int, int, int],
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        width, height, batch = sizes
        e_N, p_3N = e_N.contiguous(), p_3N.contiguous()
        flows, cells = e_N.shape[0], batch * width * height
        sums_2X = torch.zeros(2, cells, device=e_N.device)
        _splat_kernel[(triton.cdiv(flows, _BLOCK),)](
            e_N, p_3N, k_N, sample_N, got_N, sums_2X, flows, cells, width, height,
            BLOCK=_BLOCK, num_warps=4,
        )  # fmt: skip
        energy_X, total_X = sums_2X
        filled_X = total_X != 0  # and not "> 0", which would hide a NaN
        surface_X = torch.where(filled_X, energy_X / torch.where(filled_X, total_X, 1.0), 0.0)
        ctx.save_for_backward(e_N, p_3N, k_N, sample_N, got_N, surface_X, total_X)
        ctx.sizes = sizes
        total_BS = total_X.view(batch, -1)
        ctx.mark_non_differentiable(total_BS)
        return surface_X.view(batch, -1), total_BS

    @staticmethod
    @once_differentiable  # hides the name of ctx from the type checker
    def backward(ctx: Any, dsurface_BS: Tensor, _: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        e_N, p_3N, k_N, sample_N, got_N, surface_X, total_X = ctx.saved_tensors
        width, height, _batch = ctx.sizes
        de_N, dp_3N = torch.empty_like(e_N), torch.empty_like(p_3N)
        flows = e_N.shape[0]
        _gather_kernel[(triton.cdiv(flows, _BLOCK),)](
            e_N, p_3N, k_N, sample_N, got_N, surface_X, total_X,
            dsurface_BS.contiguous().view(-1), de_N, dp_3N, flows, width, height,
            BLOCK=_BLOCK, num_warps=4,
        )  # fmt: skip
        return de_N, dp_3N, None, None, None, None
