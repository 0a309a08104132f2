"""What a run of the fused loop writes.

N flows, C carrier width, L layers, T lattice steps, U columns of layer 0's input, A width of the
heads, R = U + L·C columns of a row of states.

States are kept once, in ``state_SNR`` with S = T + L slabs: slab s holds, side by side, what layer
0 reads in step s, layer 0's state before step s, layer 1's before step s - 1, and so on. So what a
layer reads and its own old state are always neighbours in one slab, and no copy brings them
together.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .plan import KernelPlan

__all__ = ["Buffers", "allocate", "zeros"]


class Buffers(NamedTuple):
    """Slabs for all steps; where no backward comes, a few that are used again and again."""

    state_SNR: Tensor
    gates: list[Tensor]  # for each layer [T, N, 4C]
    heads_TNA: Tensor
    q_T4N: Tensor  # x, y, z and energy; T + 1 of these two
    alive_TN: Tensor
    slopes_T8N: Tensor
    stop_T: Tensor  # not 0: nothing moves in this step


def allocate(
    plan: KernelPlan, e_N: Tensor, p_3N: Tensor, k_N: Tensor | None, dtype: torch.dtype, keep: bool
) -> Buffers:
    """Memory for a run, with the flows at their start.

    Args:
        plan: sizes.
        e_N: energies.
        p_3N: positions.
        k_N: how many steps each flow takes, where that is decided already.
        dtype: of states and products.
        keep: everything, for backward.
    """
    steps, flows = plan.steps, e_N.shape[0]
    slabs, ring = (steps, steps + plan.layers) if keep else (1, plan.layers + 1)
    wide: Any = {"device": e_N.device, "dtype": dtype}
    small: Any = {"device": e_N.device, "dtype": torch.float32}
    # A CPU's product of 16 bits reads beyond a row, times zero: no NaN may lie there.
    fresh = torch.empty if e_N.is_cuda else torch.zeros
    many = plan.layers if keep else 1
    gates = [fresh(slabs, flows, 4 * plan.hidden, **wide) for _ in range(many)]
    buffers = Buffers(
        state_SNR=fresh(ring, flows, plan.row, **wide),
        gates=gates if keep else gates * plan.layers,
        heads_TNA=torch.empty(slabs, flows, plan.heads, **wide),
        q_T4N=torch.empty(steps + 1, 4, flows, **small),
        alive_TN=torch.empty(steps + 1, flows, device=e_N.device, dtype=torch.uint8),
        slopes_T8N=torch.empty(slabs, 8, flows, **small),
        stop_T=torch.zeros(steps, device=e_N.device, dtype=torch.int32),
    )
    buffers.q_T4N[0, :3].copy_(p_3N)
    buffers.q_T4N[0, 3].copy_(e_N)
    if k_N is None:
        buffers.alive_TN[0].fill_(1)
    else:
        step_T1 = torch.arange(steps + 1, device=e_N.device)[:, None]
        torch.lt(step_T1, k_N, out=buffers.alive_TN.view(torch.bool))
    return buffers


def zeros(
    *shapes: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Tensors of zeros, filled in one launch: they are pieces of one."""
    sizes = [math.prod(shape) for shape in shapes]
    pieces = torch.zeros(sum(sizes), device=device, dtype=dtype).split(sizes)
    return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
