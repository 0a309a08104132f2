"""Triton kernels of the ends of the heads: energies, movement, exits, and their gradients.

N flows, A width of the heads (E of the energy, M of the movement), P slots.
"""

# Triton is there only where it can be used, and makes something else of its functions.
# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .device_math import gelu, gelu_both, tanh
from .plan import Blocks, Plan

__all__ = ["heads_backward", "heads_forward"]

_MOST_ENERGY = tl.constexpr(4.0)
_MOST_MOVE = tl.constexpr(0.5)
_COLUMNS = 64


@triton.jit
def _axis(d, scale, p, BOUND: tl.constexpr):
    """Displacement on an axis and its slope by the head."""
    wanted = scale * d
    if BOUND:
        delta = tl.minimum(tl.maximum(wanted, -_MOST_MOVE), _MOST_MOVE)
        slope = tl.where(tl.abs(wanted) <= _MOST_MOVE, scale, 0.0)
    else:
        turned = tanh(wanted / _MOST_MOVE)
        delta = _MOST_MOVE * turned
        slope = (1 - turned * turned) * scale
    return delta, slope


@triton.jit
def _wall(q, REFLECT: tl.constexpr):
    """A coordinate after the side walls, and its slope by the one before."""
    slope = tl.full(q.shape, 1.0, tl.float32)
    if REFLECT:
        slope = tl.where(tl.abs(q) > 1, -1.0, 1.0)
        q = tl.where(q < -1, -2 - q, tl.where(q > 1, 2 - q, q))
    slope = tl.where(tl.abs(q) <= 1, slope, 0.0)
    return tl.where(q < -1, -1.0, tl.where(q > 1, 1.0, q)), slope


# Single numbers lie where they lie: without this each place would be a kernel of its own.
@triton.jit(do_not_specialize_on_alignment=["stop", "left"])
def _heads_forward_kernel(
    heads, ends, p, e, alive, stop, noise, scale_at, p_after, e_after, alive_after, slopes,
    k, exits, left, flows, drift,
    E: tl.constexpr, M: tl.constexpr, BE: tl.constexpr, BM: tl.constexpr, NOISE: tl.constexpr,
    TANH: tl.constexpr, BOUND: tl.constexpr, REFLECT: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    A: tl.constexpr = E + M
    pid = tl.program_id(0)
    row = pid * BN + tl.arange(0, BN)
    there = row < flows
    base = heads + row.to(tl.int64)[:, None] * A
    unit = tl.arange(0, BE)
    inside = unit < E
    mask = there[:, None] & inside[None, :]
    near = tl.load(base + unit[None, :], mask=mask, other=0.0).to(tl.float32)
    near = gelu(near + tl.load(ends + unit, mask=inside, other=0.0)[None, :])
    w_e = tl.load(ends + A + unit, mask=inside, other=0.0)
    tail = ends + A + E + 3 * M  # b_energy, b_move
    change = tl.sum(near * w_e[None, :], 1) + tl.load(tail)
    unit = tl.arange(0, BM)
    inside = unit < M
    mask = there[:, None] & inside[None, :]
    near = tl.load(base + E + unit[None, :], mask=mask, other=0.0).to(tl.float32)
    near = gelu(near + tl.load(ends + E + unit, mask=inside, other=0.0)[None, :])
    w_m = ends + A + E + unit
    d_x = tl.sum(near * tl.load(w_m, mask=inside, other=0.0)[None, :], 1) + tl.load(tail + 1)
    d_y = tl.sum(near * tl.load(w_m + M, mask=inside, other=0.0)[None, :], 1) + tl.load(tail + 2)
    d_z = tl.sum(near * tl.load(w_m + 2 * M, mask=inside, other=0.0)[None, :], 1) + tl.load(
        tail + 3
    )

    living = tl.load(alive + row, mask=there, other=0)
    active = (living != 0) & (tl.load(stop) == 0)
    energy = tl.load(e + row, mask=there, other=0.0)
    if TANH:
        grown = tanh(change)
        by_change = 1 - grown * grown
        by_e = tl.zeros((BN,), tl.float32)
    else:
        grown = energy + change
        by_e = tl.where(tl.abs(grown) <= _MOST_ENERGY, 1.0, 0.0)
        by_change = by_e
        grown = tl.where(grown > _MOST_ENERGY, _MOST_ENERGY, grown)
        grown = tl.where(grown < -_MOST_ENERGY, -_MOST_ENERGY, grown)
    scale = tl.load(scale_at)
    px = tl.load(p + row, mask=there, other=0.0)
    py = tl.load(p + flows + row, mask=there, other=0.0)
    pz = tl.load(p + 2 * flows + row, mask=there, other=0.0)
    step_x, by_x = _axis(d_x, scale, px, BOUND)
    step_y, by_y = _axis(d_y, scale, py, BOUND)
    step_z, by_z = _axis(d_z, scale, pz, BOUND)
    qx, qy = px + step_x, py + step_y
    qz = pz + (step_z + tl.where(step_z >= 0, drift, -drift))
    if NOISE:
        qx += tl.load(noise + row, mask=there, other=0.0)
        qy += tl.load(noise + flows + row, mask=there, other=0.0)
        qz += tl.load(noise + 2 * flows + row, mask=there, other=0.0)
    face = tl.where(qz <= -1, 1, tl.where(qz >= 1, 2, 0))
    face = tl.where(active, face, 0)
    qx, on_x = _wall(qx, REFLECT)
    qy, on_y = _wall(qy, REFLECT)
    qz, on_z = _wall(qz, False)
    gone = face > 0
    tl.store(p_after + row, tl.where(active, qx, px), mask=there)
    tl.store(p_after + flows + row, tl.where(active, qy, py), mask=there)
    tl.store(p_after + 2 * flows + row, tl.where(active, qz, pz), mask=there)
    tl.store(e_after + row, tl.where(active, grown, energy), mask=there)
    tl.store(alive_after + row, tl.where(gone, 0, living).to(tl.uint8), mask=there)
    s = slopes + row
    tl.store(s, tl.where(active, by_change, 0.0), mask=there)
    tl.store(s + flows, tl.where(active, by_e, 1.0), mask=there)
    tl.store(s + 2 * flows, tl.where(active, on_x, 1.0), mask=there)
    tl.store(s + 3 * flows, tl.where(active, on_y, 1.0), mask=there)
    tl.store(s + 4 * flows, tl.where(active, on_z, 1.0), mask=there)
    tl.store(s + 5 * flows, tl.where(active, on_x * by_x, 0.0), mask=there)
    tl.store(s + 6 * flows, tl.where(active, on_y * by_y, 0.0), mask=there)
    tl.store(s + 7 * flows, tl.where(active, on_z * by_z, 0.0), mask=there)
    count = tl.load(k + row, mask=there, other=0)
    tl.store(k + row, count + active.to(tl.int32), mask=there)
    tl.store(exits + row, face, mask=there & gone)
    tl.store(left + pid, tl.sum(gone.to(tl.int32), 0))


def heads_forward(
    heads_NA: Tensor,
    ends: Tensor,
    p_3N: Tensor,
    e_N: Tensor,
    alive_N: Tensor,
    stop: Tensor,
    noise_3N: Tensor | None,
    scale: Tensor,
    p_after_3N: Tensor,
    e_after_N: Tensor,
    alive_after_N: Tensor,
    slopes_8N: Tensor,
    k_N: Tensor,
    exit_N: Tensor,
    left_P: Tensor,
    plan: Plan,
) -> None:
    """See ``reference_carrier.heads_forward``."""
    blocks = plan.blocks or Blocks()
    flows, rows = e_N.shape[0], blocks.heads_rows
    wide, move = plan.split
    _heads_forward_kernel[(triton.cdiv(flows, rows),)](
        heads_NA, ends, p_3N, e_N, alive_N, stop, p_3N if noise_3N is None else noise_3N, scale,
        p_after_3N, e_after_N, alive_after_N, slopes_8N, k_N, exit_N, left_P, flows, plan.drift,
        E=wide, M=move, BE=triton.next_power_of_2(wide), BM=triton.next_power_of_2(move),
        NOISE=noise_3N is not None, TANH=plan.energy == "tanh", BOUND=plan.bound == "clamp",
        REFLECT=plan.reflect, BN=rows, num_warps=blocks.heads_warps,
    )  # fmt: skip


@triton.jit
def _plus(at, value, mask):
    tl.store(at, tl.load(at, mask=mask) + value, mask=mask)


@triton.jit
def _times(at, by, mask):
    tl.store(at, tl.load(at, mask=mask) * tl.load(by, mask=mask), mask=mask)


@triton.jit
def _heads_backward_kernel(
    heads, ends, slopes, dp, de, partial, flows, programs,
    E: tl.constexpr, M: tl.constexpr, BC: tl.constexpr, F: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    A: tl.constexpr = E + M
    pid = tl.program_id(0)
    blocks = tl.cdiv(flows, BN)
    own = partial + pid * F
    tail = own + A + E + 3 * M  # b_energy, b_move
    kind = heads.dtype.element_ty
    for begin in tl.static_range(0, E, BC):
        unit = begin + tl.arange(0, BC)
        inside = unit < E
        bias = tl.load(ends + unit, mask=inside, other=0.0)[None, :]
        w_e = tl.load(ends + A + unit, mask=inside, other=0.0)[None, :]
        sum_raw = tl.zeros((BN, BC), tl.float32)
        sum_w = tl.zeros((BN, BC), tl.float32)
        sum_e = tl.zeros((BN,), tl.float32)
        for block in range(pid, blocks, programs):
            row = block * BN + tl.arange(0, BN)
            there = row < flows
            mask = there[:, None] & inside[None, :]
            d_e = tl.load(de + row, mask=there, other=0.0)
            d_e *= tl.load(slopes + row, mask=there, other=0.0)
            at = heads + row.to(tl.int64)[:, None] * A + unit[None, :]
            near, slope = gelu_both(tl.load(at, mask=mask, other=0.0).to(tl.float32) + bias)
            d_raw = d_e[:, None] * w_e * slope
            tl.store(at, d_raw.to(kind), mask=mask)
            sum_raw += d_raw
            sum_w += d_e[:, None] * near
            sum_e += d_e
        _plus(own + unit, tl.sum(sum_raw, 0), inside)
        _plus(own + A + unit, tl.sum(sum_w, 0), inside)
        if begin == 0:
            tl.store(tail, tl.load(tail) + tl.sum(sum_e, 0))
    for begin in tl.static_range(0, M, BC):
        unit = begin + tl.arange(0, BC)
        inside = unit < M
        bias = tl.load(ends + E + unit, mask=inside, other=0.0)[None, :]
        w = ends + A + E + unit
        w_x = tl.load(w, mask=inside, other=0.0)[None, :]
        w_y = tl.load(w + M, mask=inside, other=0.0)[None, :]
        w_z = tl.load(w + 2 * M, mask=inside, other=0.0)[None, :]
        sum_raw = tl.zeros((BN, BC), tl.float32)
        by_x = tl.zeros((BN, BC), tl.float32)
        by_y = tl.zeros((BN, BC), tl.float32)
        by_z = tl.zeros((BN, BC), tl.float32)
        sum_x = tl.zeros((BN,), tl.float32)
        sum_y = tl.zeros((BN,), tl.float32)
        sum_z = tl.zeros((BN,), tl.float32)
        for block in range(pid, blocks, programs):
            row = block * BN + tl.arange(0, BN)
            there = row < flows
            mask = there[:, None] & inside[None, :]
            s = slopes + 5 * flows + row
            d_x = tl.load(dp + row, mask=there, other=0.0)
            d_x *= tl.load(s, mask=there, other=0.0)
            d_y = tl.load(dp + flows + row, mask=there, other=0.0)
            d_y *= tl.load(s + flows, mask=there, other=0.0)
            d_z = tl.load(dp + 2 * flows + row, mask=there, other=0.0)
            d_z *= tl.load(s + 2 * flows, mask=there, other=0.0)
            at = heads + row.to(tl.int64)[:, None] * A + E + unit[None, :]
            near, slope = gelu_both(tl.load(at, mask=mask, other=0.0).to(tl.float32) + bias)
            d_raw = (d_x[:, None] * w_x + d_y[:, None] * w_y + d_z[:, None] * w_z) * slope
            tl.store(at, d_raw.to(kind), mask=mask)
            sum_raw += d_raw
            by_x += d_x[:, None] * near
            by_y += d_y[:, None] * near
            by_z += d_z[:, None] * near
            sum_x += d_x
            sum_y += d_y
            sum_z += d_z
        _plus(own + E + unit, tl.sum(sum_raw, 0), inside)
        at_w = own + A + E + unit
        _plus(at_w, tl.sum(by_x, 0), inside)
        _plus(at_w + M, tl.sum(by_y, 0), inside)
        _plus(at_w + 2 * M, tl.sum(by_z, 0), inside)
        if begin == 0:
            tl.store(tail + 1, tl.load(tail + 1) + tl.sum(sum_x, 0))
            tl.store(tail + 2, tl.load(tail + 2) + tl.sum(sum_y, 0))
            tl.store(tail + 3, tl.load(tail + 3) + tl.sum(sum_z, 0))
    # Only now, and after all threads have read them: what the step before gets of the gradients.
    tl.debug_barrier()
    for block in range(pid, blocks, programs):
        row = block * BN + tl.arange(0, BN)
        there = row < flows
        s = slopes + flows + row
        _times(de + row, s, there)
        _times(dp + row, s + flows, there)
        _times(dp + flows + row, s + 2 * flows, there)
        _times(dp + 2 * flows + row, s + 3 * flows, there)


def heads_backward(
    heads_NA: Tensor,
    ends: Tensor,
    slopes_8N: Tensor,
    dp_3N: Tensor,
    de_N: Tensor,
    partial_PE: Tensor,
    plan: Plan,
) -> None:
    """See ``reference_carrier.heads_backward``."""
    wide, move = plan.split
    blocks = plan.blocks or Blocks()
    programs, width = partial_PE.shape
    _heads_backward_kernel[(programs,)](
        heads_NA, ends, slopes_8N, dp_3N, de_N, partial_PE, de_N.shape[0], programs,
        E=wide, M=move, BC=_COLUMNS, F=width,
        BN=blocks.heads_back_rows, num_warps=blocks.heads_back_warps,
    )  # fmt: skip
