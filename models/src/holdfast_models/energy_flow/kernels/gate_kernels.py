"""Triton kernels of the gates of a layer.

N flows, C carrier width, G = 4C gates, P slots.
"""

# Triton is there only where it can be used, and makes something else of its functions.
# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ...device_math import sigmoid, tanh
from .plan import BlockSizes, KernelPlan, rows_of, tile

__all__ = ["gates_backward", "gates_forward"]


# Single numbers lie where they lie: without this each place would be a kernel of its own.
@triton.jit(do_not_specialize_on_alignment=["stop", "most"])
def _gates_forward_kernel(
    gates, before, bias, after, alive, stop, most, flows, row_before, row_after,
    C: tl.constexpr, FIRST: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    column = tl.program_id(1) * BC + tl.arange(0, BC)
    there = row < flows
    mask = there[:, None] & (column < C)[None, :]
    far = row.to(tl.int64)[:, None]
    base = gates + far * (4 * C) + column[None, :]
    b = bias + column
    inside = column < C
    g_n = tl.load(base, mask=mask, other=0.0).to(tl.float32)
    g_r = tl.load(base + C, mask=mask, other=0.0).to(tl.float32)
    g_z = tl.load(base + 2 * C, mask=mask, other=0.0).to(tl.float32)
    b_n, b_r = tl.load(b, mask=inside, other=0.0), tl.load(b + C, mask=inside, other=0.0)
    b_z, b_h = (
        tl.load(b + 2 * C, mask=inside, other=0.0),
        tl.load(b + 3 * C, mask=inside, other=0.0),
    )
    reset = sigmoid(g_r + b_r[None, :])
    update = sigmoid(g_z + b_z[None, :])
    if FIRST:
        new = tanh(g_n + b_n[None, :] + reset * b_h[None, :])
        h = new - update * new
    else:
        g_h = tl.load(base + 3 * C, mask=mask, other=0.0).to(tl.float32)
        old = tl.load(before + far * row_before + column[None, :], mask=mask, other=0.0)
        new = tanh(g_n + b_n[None, :] + reset * (g_h + b_h[None, :]))
        h = new + update * (old.to(tl.float32) - new)
    tl.store(after + far * row_after + column[None, :], h.to(after.dtype.element_ty), mask=mask)
    active = (tl.load(alive + row, mask=there, other=0) != 0) & (tl.load(stop) == 0)
    size = tl.where(h == h, tl.abs(h), float("inf"))
    size = tl.max(tl.where(active[:, None] & mask, size, 0.0))
    tl.store(most + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), size)


def gates_forward(
    gates_NG: Tensor,
    before_NC: Tensor | None,
    bias_G: Tensor,
    after_NC: Tensor,
    alive_N: Tensor,
    stop: Tensor,
    most_P: Tensor,
    plan: KernelPlan,
) -> None:
    """See ``reference.gates_forward``."""
    flows, wide = after_NC.shape
    blocks = plan.blocks or BlockSizes()
    columns = tile(wide)
    rows = rows_of(blocks.gates_block, columns)
    old = after_NC if before_NC is None else before_NC
    _gates_forward_kernel[(triton.cdiv(flows, rows), triton.cdiv(wide, columns))](
        gates_NG, old, bias_G, after_NC, alive_N, stop, most_P,
        flows, old.stride(0), after_NC.stride(0),
        C=wide, FIRST=before_NC is None, BR=rows, BC=columns, num_warps=blocks.gates_warps,
    )  # fmt: skip


@triton.jit
def _gates_backward_kernel(
    gates, before, bias, dh, partial, flows, row_before, programs,
    C: tl.constexpr, FIRST: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    column = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = column < C
    b = bias + column
    sum_n = tl.zeros((BR, BC), tl.float32)
    sum_r = tl.zeros((BR, BC), tl.float32)
    sum_z = tl.zeros((BR, BC), tl.float32)
    sum_h = tl.zeros((BR, BC), tl.float32)
    for block in range(pid, tl.cdiv(flows, BR), programs):
        row = block * BR + tl.arange(0, BR)
        mask = (row < flows)[:, None] & inside[None, :]
        far = row.to(tl.int64)[:, None]
        base = gates + far * (4 * C) + column[None, :]
        slope = dh + far * C + column[None, :]
        d = tl.load(slope, mask=mask, other=0.0).to(tl.float32)
        g_n = tl.load(base, mask=mask, other=0.0).to(tl.float32)
        g_r = tl.load(base + C, mask=mask, other=0.0).to(tl.float32)
        g_z = tl.load(base + 2 * C, mask=mask, other=0.0).to(tl.float32)
        # read anew each time: from the nearest cache, and 32 registers less
        b_n = tl.load(b, mask=inside, other=0.0)[None, :]
        b_r = tl.load(b + C, mask=inside, other=0.0)[None, :]
        b_z = tl.load(b + 2 * C, mask=inside, other=0.0)[None, :]
        b_h = tl.load(b + 3 * C, mask=inside, other=0.0)[None, :]
        reset = sigmoid(g_r + b_r)
        update = sigmoid(g_z + b_z)
        if FIRST:
            state_n = b_h + tl.zeros((BR, BC), tl.float32)
            new = tanh(g_n + b_n + reset * state_n)
            apart = -new
        else:
            state_n = tl.load(base + 3 * C, mask=mask, other=0.0).to(tl.float32) + b_h
            old = tl.load(before + far * row_before + column[None, :], mask=mask, other=0.0)
            new = tanh(g_n + b_n + reset * state_n)
            apart = old.to(tl.float32) - new
        d_n = d * (1 - update) * (1 - new * new)
        d_z = d * apart * update * (1 - update)
        d_r = d_n * state_n * reset * (1 - reset)
        d_h = d_n * reset
        sum_n += d_n
        sum_r += d_r
        sum_z += d_z
        sum_h += d_h
        kind = gates.dtype.element_ty
        tl.store(base, d_n.to(kind), mask=mask)
        tl.store(base + C, d_r.to(kind), mask=mask)
        tl.store(base + 2 * C, d_z.to(kind), mask=mask)
        if not FIRST:
            tl.store(base + 3 * C, d_h.to(kind), mask=mask)
            tl.store(slope, (d * update).to(kind), mask=mask)
    own = partial + pid * (4 * C) + column
    tl.store(own, tl.load(own, mask=inside) + tl.sum(sum_n, 0), mask=inside)
    tl.store(own + C, tl.load(own + C, mask=inside) + tl.sum(sum_r, 0), mask=inside)
    tl.store(own + 2 * C, tl.load(own + 2 * C, mask=inside) + tl.sum(sum_z, 0), mask=inside)
    tl.store(own + 3 * C, tl.load(own + 3 * C, mask=inside) + tl.sum(sum_h, 0), mask=inside)


def gates_backward(
    gates_NG: Tensor,
    before_NC: Tensor | None,
    bias_G: Tensor,
    dh_NC: Tensor,
    partial_PG: Tensor,
    plan: KernelPlan,
) -> None:
    """See ``reference.gates_backward``."""
    flows, wide = dh_NC.shape
    blocks = plan.blocks or BlockSizes()
    columns = tile(wide)
    rows = rows_of(blocks.gates_back_block, columns)
    old = dh_NC if before_NC is None else before_NC
    programs = partial_PG.shape[0]
    _gates_backward_kernel[(programs, triton.cdiv(wide, columns))](
        gates_NG, old, bias_G, dh_NC, partial_PG, flows, old.stride(0), programs,
        C=wide, FIRST=before_NC is None, BR=rows, BC=columns, num_warps=blocks.gates_back_warps,
    )  # fmt: skip
