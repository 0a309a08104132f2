"""The collection as two kernels forward and one backward, instead of about a hundred.

N flows, B batch, S cells, X = B·S. As ``collection.collect`` with bilinear shares, without taking
the largest weight out of the exponent: no weight is above 4·(1 + T/10), so that this is exact up
to rounding for T up to ``MOST_STEPS``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..model.collection import Collected
from ..model.settings import LatticeSettings
from .ops import Ops

__all__ = ["MOST_STEPS", "collect"]

MOST_STEPS = 180


def collect(
    e_N: Tensor,
    p_N3: Tensor,
    k_N: Tensor,
    sample_N: Tensor,
    done_N: Tensor,
    lattice: LatticeSettings,
    batch: int,
    ops: Ops,
) -> Collected:
    """Gathers both faces on one surface; see ``collection.collect``.

    Args:
        e_N: energies.
        p_N3: positions at the end.
        k_N: steps taken.
        sample_N: which sample a flow belongs to.
        done_N: which flows count, bool.
        lattice: whose surface.
        batch: B.
        ops: the kernels.
    """
    sizes = (lattice.width, lattice.height, batch)
    surface_BS, total_BS = _Collect.apply(e_N, p_N3.t(), k_N, sample_N, done_N, sizes, ops)
    return Collected(surface_BS, total_BS != 0)


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, e_N: Tensor, p_3N: Tensor, k_N: Tensor, sample_N: Tensor, got_N: Tensor,
        sizes: tuple[int, int, int], ops: Ops,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        width, height, batch = sizes
        e_N, p_3N = e_N.contiguous(), p_3N.contiguous()
        sums_2X = torch.zeros(2, batch * width * height, device=e_N.device)
        ops.splat(e_N, p_3N, k_N, sample_N, got_N, sums_2X, width, height)
        energy_X, total_X = sums_2X
        filled_X = total_X != 0  # and not "> 0", which would hide a NaN
        surface_X = torch.where(filled_X, energy_X / torch.where(filled_X, total_X, 1.0), 0.0)
        ctx.save_for_backward(e_N, p_3N, k_N, sample_N, got_N, surface_X, total_X)
        ctx.sizes, ctx.ops = sizes, ops
        total_BS = total_X.view(batch, -1)
        ctx.mark_non_differentiable(total_BS)
        return surface_X.view(batch, -1), total_BS

    @staticmethod
    @once_differentiable  # hides the name of ctx from the type checker
    def backward(ctx: Any, dsurface_BS: Tensor, _: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        e_N, p_3N, k_N, sample_N, got_N, surface_X, total_X = ctx.saved_tensors
        width, height, _batch = ctx.sizes
        de_N, dp_3N = torch.empty_like(e_N), torch.empty_like(p_3N)
        ctx.ops.gather(
            e_N, p_3N, k_N, sample_N, got_N, surface_X, total_X,
            dsurface_BS.contiguous().view(-1), de_N, dp_3N, width, height,
        )  # fmt: skip
        return de_N, dp_3N, None, None, None, None, None
