"""Triton kernels of the ends of the heads: energies, movement, exits, and their gradients.

N flows, A width of the heads (E of the energy, M of the movement), P slots.
"""

# Triton is there only where it can be used, and makes something else of its functions.
# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ...device_math import gelu, gelu_both, tanh
from .plan import HEADS_TILE, BlockSizes, KernelPlan, heads_groups

__all__ = ["heads_backward", "heads_forward"]

_MOST_ENERGY = tl.constexpr(4.0)
_MOST_MOVE = tl.constexpr(0.5)


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


@triton.jit
def _raw(base, bias, there, unit, WIDE: tl.constexpr):
    """A tile of the products, with their bias."""
    inside = unit < WIDE
    raw = tl.load(base + unit[None, :], mask=there[:, None] & inside[None, :], other=0.0)
    return raw.to(tl.float32) + tl.load(bias + unit, mask=inside, other=0.0)[None, :]


# Single numbers lie where they lie: without this each place would be a kernel of its own.
@triton.jit(do_not_specialize_on_alignment=["stop", "left"])
def _heads_forward_kernel(
    heads, ends, q, alive, stop, noise, scale_at, q_after, alive_after, slopes,
    k, exits, left, flows, drift,
    E: tl.constexpr, M: tl.constexpr, BC: tl.constexpr, NOISE: tl.constexpr,
    TANH: tl.constexpr, BOUND: tl.constexpr, REFLECT: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    A: tl.constexpr = E + M
    pid = tl.program_id(0)
    row = pid * BN + tl.arange(0, BN)
    there = row < flows
    base = heads + row.to(tl.int64)[:, None] * A
    change = tl.zeros((BN, BC), tl.float32)
    for begin in tl.static_range(0, E, BC):
        unit = begin + tl.arange(0, BC)
        near = gelu(_raw(base, ends, there, unit, E))
        change += near * tl.load(ends + A + unit, mask=unit < E, other=0.0)[None, :]
    d_x = tl.zeros((BN, BC), tl.float32)
    d_y = tl.zeros((BN, BC), tl.float32)
    d_z = tl.zeros((BN, BC), tl.float32)
    for begin in tl.static_range(0, M, BC):
        unit = begin + tl.arange(0, BC)
        near = gelu(_raw(base + E, ends + E, there, unit, M))
        w = ends + A + E + unit
        d_x += near * tl.load(w, mask=unit < M, other=0.0)[None, :]
        d_y += near * tl.load(w + M, mask=unit < M, other=0.0)[None, :]
        d_z += near * tl.load(w + 2 * M, mask=unit < M, other=0.0)[None, :]
    tail = ends + A + E + 3 * M  # b_energy, b_move
    change = tl.sum(change, 1) + tl.load(tail)
    d_x = tl.sum(d_x, 1) + tl.load(tail + 1)
    d_y = tl.sum(d_y, 1) + tl.load(tail + 2)
    d_z = tl.sum(d_z, 1) + tl.load(tail + 3)

    living = tl.load(alive + row, mask=there, other=0)
    active = (living != 0) & (tl.load(stop) == 0)
    energy = tl.load(q + 3 * flows + row, mask=there, other=0.0)
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
    px = tl.load(q + row, mask=there, other=0.0)
    py = tl.load(q + flows + row, mask=there, other=0.0)
    pz = tl.load(q + 2 * flows + row, mask=there, other=0.0)
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
    tl.store(q_after + row, tl.where(active, qx, px), mask=there)
    tl.store(q_after + flows + row, tl.where(active, qy, py), mask=there)
    tl.store(q_after + 2 * flows + row, tl.where(active, qz, pz), mask=there)
    tl.store(q_after + 3 * flows + row, tl.where(active, grown, energy), mask=there)
    tl.store(alive_after + row, tl.where(gone, 0, living).to(tl.uint8), mask=there)
    s = slopes + row
    tl.store(s, tl.where(active, on_x, 1.0), mask=there)
    tl.store(s + flows, tl.where(active, on_y, 1.0), mask=there)
    tl.store(s + 2 * flows, tl.where(active, on_z, 1.0), mask=there)
    tl.store(s + 3 * flows, tl.where(active, by_e, 1.0), mask=there)
    tl.store(s + 4 * flows, tl.where(active, on_x * by_x, 0.0), mask=there)
    tl.store(s + 5 * flows, tl.where(active, on_y * by_y, 0.0), mask=there)
    tl.store(s + 6 * flows, tl.where(active, on_z * by_z, 0.0), mask=there)
    tl.store(s + 7 * flows, tl.where(active, by_change, 0.0), mask=there)
    count = tl.load(k + row, mask=there, other=0)
    tl.store(k + row, count + active.to(tl.int32), mask=there)
    tl.store(exits + row, face, mask=there & gone)
    tl.store(left + pid, tl.sum(gone.to(tl.int32), 0))


def heads_forward(
    heads_NA: Tensor,
    ends: Tensor,
    q_4N: Tensor,
    alive_N: Tensor,
    stop: Tensor,
    noise_3N: Tensor | None,
    scale: Tensor,
    q_after_4N: Tensor,
    alive_after_N: Tensor,
    slopes_8N: Tensor,
    k_N: Tensor,
    exit_N: Tensor,
    left_P: Tensor,
    plan: KernelPlan,
) -> None:
    """See ``reference.heads_forward``."""
    blocks = plan.blocks or BlockSizes()
    flows, rows = q_4N.shape[1], blocks.heads_rows
    wide, move = plan.split
    _heads_forward_kernel[(triton.cdiv(flows, rows),)](
        heads_NA, ends, q_4N, alive_N, stop, q_4N if noise_3N is None else noise_3N, scale,
        q_after_4N, alive_after_N, slopes_8N, k_N, exit_N, left_P, flows, plan.drift,
        E=wide, M=move, BC=HEADS_TILE, NOISE=noise_3N is not None,
        TANH=plan.energy == "tanh", BOUND=plan.bound == "clamp", REFLECT=plan.reflect, BN=rows,
        num_warps=blocks.heads_warps,
    )  # fmt: skip


@triton.jit
def _slot(own, unit, WIDE: tl.constexpr, BN: tl.constexpr):
    """What a slot holds already, as the first row of a tile to add to."""
    first = tl.arange(0, BN)[:, None] == 0
    return tl.load(own + unit[None, :] + tl.zeros((BN, 1), tl.int32),
                   mask=first & (unit < WIDE)[None, :], other=0.0)  # fmt: skip


@triton.jit
def _gradient(d, slopes, number, row, there, flows):
    """Of a head's end, from that of what the end moves."""
    slope = tl.load(slopes + (4 + number) * flows + row, mask=there, other=0.0)
    return tl.load(d + number * flows + row, mask=there, other=0.0) * slope


@triton.jit
def _energy_columns(
    heads, ends, slopes, d, own, group, flows, programs,
    E: tl.constexpr, M: tl.constexpr, BC: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    A: tl.constexpr = E + M
    unit = group * BC + tl.arange(0, BC)
    inside = unit < E
    w_e = tl.load(ends + A + unit, mask=inside, other=0.0)[None, :]
    sum_raw, sum_w = _slot(own, unit, E, BN), _slot(own + A, unit, E, BN)
    sum_e = tl.zeros((BN,), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(flows, BN), programs):
        row = block * BN + tl.arange(0, BN)
        there = row < flows
        d_e = _gradient(d, slopes, 3, row, there, flows)
        base = heads + row.to(tl.int64)[:, None] * A
        near, slope = gelu_both(_raw(base, ends, there, unit, E))
        d_raw = d_e[:, None] * (w_e * slope)
        tl.store(base + unit[None, :], d_raw.to(heads.dtype.element_ty),
                 mask=there[:, None] & inside[None, :])  # fmt: skip
        sum_raw += d_raw
        sum_w += d_e[:, None] * near
        sum_e += d_e
    tl.store(own + unit, tl.sum(sum_raw, 0), mask=inside)
    tl.store(own + A + unit, tl.sum(sum_w, 0), mask=inside)
    if group == 0:
        tail = own + A + E + 3 * M
        tl.store(tail, tl.load(tail) + tl.sum(sum_e, 0))


@triton.jit
def _move_columns(
    heads, ends, slopes, d, own, group, flows, programs,
    E: tl.constexpr, M: tl.constexpr, BC: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    A: tl.constexpr = E + M
    unit = group * BC + tl.arange(0, BC)
    inside = unit < M
    w = ends + A + E + unit
    w_x = tl.load(w, mask=inside, other=0.0)[None, :]
    w_y = tl.load(w + M, mask=inside, other=0.0)[None, :]
    w_z = tl.load(w + 2 * M, mask=inside, other=0.0)[None, :]
    ours = own + A + E
    sum_raw, by_x = _slot(own + E, unit, M, BN), _slot(ours, unit, M, BN)
    by_y, by_z = _slot(ours + M, unit, M, BN), _slot(ours + 2 * M, unit, M, BN)
    sum_x = tl.zeros((BN,), tl.float32)
    sum_y = tl.zeros((BN,), tl.float32)
    sum_z = tl.zeros((BN,), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(flows, BN), programs):
        row = block * BN + tl.arange(0, BN)
        there = row < flows
        d_x = _gradient(d, slopes, 0, row, there, flows)
        d_y = _gradient(d, slopes, 1, row, there, flows)
        d_z = _gradient(d, slopes, 2, row, there, flows)
        base = heads + row.to(tl.int64)[:, None] * A + E
        near, slope = gelu_both(_raw(base, ends + E, there, unit, M))
        d_raw = (d_x[:, None] * w_x + d_y[:, None] * w_y + d_z[:, None] * w_z) * slope
        tl.store(base + unit[None, :], d_raw.to(heads.dtype.element_ty),
                 mask=there[:, None] & inside[None, :])  # fmt: skip
        sum_raw += d_raw
        by_x += d_x[:, None] * near
        by_y += d_y[:, None] * near
        by_z += d_z[:, None] * near
        sum_x += d_x
        sum_y += d_y
        sum_z += d_z
    tl.store(own + E + unit, tl.sum(sum_raw, 0), mask=inside)
    ours += unit
    tl.store(ours, tl.sum(by_x, 0), mask=inside)
    tl.store(ours + M, tl.sum(by_y, 0), mask=inside)
    tl.store(ours + 2 * M, tl.sum(by_z, 0), mask=inside)
    if group == 0:
        tail = own + A + E + 3 * M
        tl.store(tail + 1, tl.load(tail + 1) + tl.sum(sum_x, 0))
        tl.store(tail + 2, tl.load(tail + 2) + tl.sum(sum_y, 0))
        tl.store(tail + 3, tl.load(tail + 3) + tl.sum(sum_z, 0))


@triton.jit(do_not_specialize=["programs"])
def _heads_backward_kernel(
    heads, ends, slopes, d, partial, flows, programs,
    E: tl.constexpr, M: tl.constexpr, BC: tl.constexpr, F: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    # Many short programs: rows by their first number, columns by their second.
    of_energy: tl.constexpr = (E + BC - 1) // BC
    own = partial + tl.program_id(0) * F
    group = tl.program_id(1)
    if group < of_energy:
        _energy_columns(heads, ends, slopes, d, own, group, flows, programs, E, M, BC, BN)
    else:  # twice as many sums, half the columns: as many registers
        group -= of_energy
        _move_columns(heads, ends, slopes, d, own, group, flows, programs, E, M, BC // 2, BN)


def heads_backward(
    heads_NA: Tensor,
    ends: Tensor,
    slopes_8N: Tensor,
    d_4N: Tensor,
    partial_PE: Tensor,
    plan: KernelPlan,
) -> None:
    """See ``reference.heads_backward``."""
    wide, move = plan.split
    blocks = plan.blocks or BlockSizes()
    programs, width = partial_PE.shape
    _heads_backward_kernel[(programs, heads_groups(plan.split))](
        heads_NA, ends, slopes_8N, d_4N, partial_PE, d_4N.shape[1], programs,
        E=wide, M=move, BC=HEADS_TILE, F=width,
        BN=blocks.heads_back_rows, num_warps=blocks.heads_back_warps,
    )  # fmt: skip
