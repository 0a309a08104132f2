"""Layer norms with what comes behind them, one kernel where rows are few."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..kernels import ops
from .linear import few


def normed(
    norm: nn.LayerNorm,
    x: Tensor,
    *,
    gelu: bool = False,
    base: Tensor | None = None,
    share: float = 1.0,
) -> Tensor:
    """``norm(x)``, its GELU, and ``base`` plus a share of it."""
    if few("norm", x) and (base is None or base.dtype == x.dtype):
        flat = None if base is None else base.reshape(-1, x.shape[-1])
        how = (norm.eps, share, gelu)
        return ops.norm(x.reshape(-1, x.shape[-1]), norm.weight, norm.bias, flat, *how).view(
            x.shape
        )
    y = norm(x)
    if gelu:
        y = functional.gelu(y)
    return y if base is None else torch.add(base, y, alpha=share)
