"""Triton kernels of the neuron.

N flows, H hidden width, o output, U columns of layer 0's input, P slots, F numbers of its weights.

A kernel that sums over flows has a fixed number of programs, each of which adds to a slot of its
own, step after step: no atomic additions, the same sum every time.
"""

# Triton is there only where it can be used, and makes something else of its functions.
# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .device_math import gelu, gelu_slope
from .plan import Blocks, Plan

__all__ = ["neuron_backward", "neuron_forward"]


@triton.jit
def _normed(x, H: tl.constexpr):
    apart = x - (tl.sum(x, 1) / H)[:, None]
    rstd = tl.rsqrt(tl.sum(apart * apart, 1) / H + 1e-5)
    return apart * rstd[:, None], rstd


@triton.jit
def _normed_back(dhat, hat, rstd, H: tl.constexpr):
    mean = tl.sum(dhat, 1) / H
    along = tl.sum(dhat * hat, 1) / H
    return rstd[:, None] * (dhat - mean[:, None] - hat * along[:, None])


@triton.jit
def _first_layer(x, y, z, e, w, unit, H: tl.constexpr):
    """The neuron's first layer up to its norm."""
    x1 = x[:, None] * tl.load(w + unit)[None, :] + y[:, None] * tl.load(w + H + unit)[None, :]
    x1 += z[:, None] * tl.load(w + 2 * H + unit)[None, :]
    x1 += e[:, None] * tl.load(w + 3 * H + unit)[None, :]
    return _normed(x1 + tl.load(w + 4 * H + unit)[None, :], H)


@triton.jit
def _bounded(v, clip):
    v = tl.where(v == v, v, 0.0)
    return tl.minimum(tl.maximum(v, -clip), clip)


# Single numbers lie where they lie: without this each place would be a kernel of its own.
@triton.jit(do_not_specialize_on_alignment=["stop", "most", "guarded"])
def _neuron_forward_kernel(
    p, e, alive, stop, w, answer_w, answer_b, out, most, guarded, flows, row_stride, clip,
    H: tl.constexpr, ANSWER: tl.constexpr, U: tl.constexpr, BN: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    row = pid * BN + tl.arange(0, BN)
    unit = tl.arange(0, H)
    there = row < flows
    active = (tl.load(alive + row, mask=there, other=0) != 0) & (tl.load(stop) == 0)
    px = tl.load(p + row, mask=there, other=0.0)
    py = tl.load(p + flows + row, mask=there, other=0.0)
    pz = tl.load(p + 2 * flows + row, mask=there, other=0.0)
    energy = tl.load(e + row, mask=there, other=0.0)
    hat1, _ = _first_layer(px, py, pz, energy, w, unit, H)
    g1 = gelu(hat1 * tl.load(w + 5 * H + unit)[None, :] + tl.load(w + 6 * H + unit)[None, :])
    second: tl.constexpr = 7 * H
    w2t = tl.load(w + second + unit[None, :] * H + unit[:, None])  # [in, out]
    x2 = tl.dot(g1, w2t, input_precision=EXACT)
    rest = w + second + H * H
    hat2, _ = _normed(x2 + tl.load(rest + unit)[None, :], H)
    g2 = gelu(hat2 * tl.load(rest + H + unit)[None, :] + tl.load(rest + 2 * H + unit)[None, :])
    # what the folded layer would have answered: only measured
    answer = tl.arange(0, ANSWER)
    w3t = tl.load(answer_w + answer[None, :] * H + unit[:, None])
    u = tl.dot(g2, w3t, input_precision=EXACT) + tl.load(answer_b + answer)[None, :]
    u = tl.where(active[:, None], tl.abs(u), 0.0)
    seen = tl.where(active, tl.abs(energy), 0.0)
    over = tl.sum(tl.sum(tl.where(u <= clip, 0, 1), 1), 0) + tl.sum(tl.where(seen <= clip, 0, 1), 0)
    u = tl.where(u == u, u, float("inf"))
    seen = tl.where(seen == seen, seen, float("inf"))
    tl.store(most + pid, tl.maximum(tl.max(tl.max(u, 1), 0), tl.max(seen, 0)))
    tl.store(guarded + pid, over)
    g2 = tl.where(active[:, None], _bounded(g2, clip), 0.0)
    energy = tl.where(active, _bounded(energy, clip), 0.0)
    base = out + row.to(tl.int64)[:, None] * row_stride
    tl.store(base + unit[None, :], g2.to(out.dtype.element_ty), mask=there[:, None])
    # the energy and the zeros behind it, in tiles as wide as the first one
    for begin in tl.static_range(H, U, H):
        tail = tl.where(unit[None, :] + begin == H, energy[:, None], 0.0)
        tl.store(base + begin + unit[None, :], tail.to(out.dtype.element_ty), mask=there[:, None])


def neuron_forward(
    p_3N: Tensor,
    e_N: Tensor,
    alive_N: Tensor,
    stop: Tensor,
    flat: Tensor,
    answer_w: Tensor,
    answer_b: Tensor,
    out_NR: Tensor,
    most_P: Tensor,
    guarded_P: Tensor,
    plan: Plan,
) -> None:
    """See ``reference_neuron.neuron_forward``."""
    blocks = plan.blocks or Blocks()
    flows, rows = e_N.shape[0], blocks.neuron_rows
    _neuron_forward_kernel[(triton.cdiv(flows, rows),)](
        p_3N, e_N, alive_N, stop, flat, answer_w, answer_b, out_NR, most_P, guarded_P,
        flows, out_NR.stride(0), plan.clip,
        H=plan.neuron, ANSWER=plan.answer, U=plan.inputs, BN=rows, EXACT=_exact(out_NR),
        num_warps=blocks.neuron_warps,
    )  # fmt: skip


# Single numbers lie where they lie: without this each place would be a kernel of its own.
@triton.jit(do_not_specialize_on_alignment=["stop"])
def _neuron_backward_kernel(
    p, e, alive, stop, w, du, dp, de, partial, flows, clip, programs,
    H: tl.constexpr, U: tl.constexpr, F: tl.constexpr, BN: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    unit = tl.arange(0, H)
    second: tl.constexpr = 7 * H
    rest = w + second + H * H
    w2t = tl.load(w + second + unit[None, :] * H + unit[:, None])  # [in, out]
    w2 = tl.load(w + second + unit[:, None] * H + unit[None, :])  # [out, in]
    gain1, shift1 = tl.load(w + 5 * H + unit), tl.load(w + 6 * H + unit)
    bias2 = tl.load(rest + unit)
    gain2, shift2 = tl.load(rest + H + unit), tl.load(rest + 2 * H + unit)
    stopped = tl.load(stop)
    sum_w2 = tl.zeros((H, H), tl.float32)  # [out, in]
    # Over blocks first, over the rows of a block once at the end: that is where threads wait.
    sum_x = tl.zeros((BN, H), tl.float32)
    sum_y = tl.zeros((BN, H), tl.float32)
    sum_z = tl.zeros((BN, H), tl.float32)
    sum_e = tl.zeros((BN, H), tl.float32)
    sum_b1 = tl.zeros((BN, H), tl.float32)
    sum_g1 = tl.zeros((BN, H), tl.float32)
    sum_s1 = tl.zeros((BN, H), tl.float32)
    sum_b2 = tl.zeros((BN, H), tl.float32)
    sum_g2 = tl.zeros((BN, H), tl.float32)
    sum_s2 = tl.zeros((BN, H), tl.float32)
    for block in range(pid, tl.cdiv(flows, BN), programs):
        row = block * BN + tl.arange(0, BN)
        there = row < flows
        active = (tl.load(alive + row, mask=there, other=0) != 0) & (stopped == 0)
        px = tl.load(p + row, mask=there, other=0.0)
        py = tl.load(p + flows + row, mask=there, other=0.0)
        pz = tl.load(p + 2 * flows + row, mask=there, other=0.0)
        energy = tl.load(e + row, mask=there, other=0.0)
        base = du + row.to(tl.int64) * U
        dg2 = tl.load(base[:, None] + unit[None, :], mask=active[:, None], other=0.0)
        dg2 = dg2.to(tl.float32)
        dseen = tl.load(base + H, mask=active & (tl.abs(energy) <= clip), other=0.0).to(tl.float32)
        hat1, rstd1 = _first_layer(px, py, pz, energy, w, unit, H)
        y1 = hat1 * gain1[None, :] + shift1[None, :]
        g1 = gelu(y1)
        x2 = tl.dot(g1, w2t, input_precision=EXACT) + bias2[None, :]
        hat2, rstd2 = _normed(x2, H)
        y2 = hat2 * gain2[None, :] + shift2[None, :]
        dg2 = tl.where(tl.abs(gelu(y2)) <= clip, dg2, 0.0)
        dy2 = dg2 * gelu_slope(y2)
        sum_g2 += dy2 * hat2
        sum_s2 += dy2
        dx2 = _normed_back(dy2 * gain2[None, :], hat2, rstd2, H)
        sum_b2 += dx2
        sum_w2 += tl.dot(tl.trans(dx2), g1, input_precision=EXACT)
        dy1 = tl.dot(dx2, w2, input_precision=EXACT) * gelu_slope(y1)
        sum_g1 += dy1 * hat1
        sum_s1 += dy1
        dx1 = _normed_back(dy1 * gain1[None, :], hat1, rstd1, H)
        sum_b1 += dx1
        sum_x += dx1 * px[:, None]
        sum_y += dx1 * py[:, None]
        sum_z += dx1 * pz[:, None]
        sum_e += dx1 * energy[:, None]
        dx = tl.sum(dx1 * tl.load(w + unit)[None, :], 1)
        dy = tl.sum(dx1 * tl.load(w + H + unit)[None, :], 1)
        dz = tl.sum(dx1 * tl.load(w + 2 * H + unit)[None, :], 1)
        dseen += tl.sum(dx1 * tl.load(w + 3 * H + unit)[None, :], 1)
        tl.store(dp + row, tl.load(dp + row, mask=there) + dx, mask=there)
        tl.store(dp + flows + row, tl.load(dp + flows + row, mask=there) + dy, mask=there)
        tl.store(dp + 2 * flows + row, tl.load(dp + 2 * flows + row, mask=there) + dz, mask=there)
        tl.store(de + row, tl.load(de + row, mask=there) + dseen, mask=there)
    own = partial + pid * F + unit
    tl.store(own, tl.load(own) + tl.sum(sum_x, 0))
    tl.store(own + H, tl.load(own + H) + tl.sum(sum_y, 0))
    tl.store(own + 2 * H, tl.load(own + 2 * H) + tl.sum(sum_z, 0))
    tl.store(own + 3 * H, tl.load(own + 3 * H) + tl.sum(sum_e, 0))
    tl.store(own + 4 * H, tl.load(own + 4 * H) + tl.sum(sum_b1, 0))
    tl.store(own + 5 * H, tl.load(own + 5 * H) + tl.sum(sum_g1, 0))
    tl.store(own + 6 * H, tl.load(own + 6 * H) + tl.sum(sum_s1, 0))
    square = partial + pid * F + second + unit[:, None] * H + unit[None, :]
    tl.store(square, tl.load(square) + sum_w2)
    own += second + H * H
    tl.store(own, tl.load(own) + tl.sum(sum_b2, 0))
    tl.store(own + H, tl.load(own + H) + tl.sum(sum_g2, 0))
    tl.store(own + 2 * H, tl.load(own + 2 * H) + tl.sum(sum_s2, 0))


def neuron_backward(
    p_3N: Tensor,
    e_N: Tensor,
    alive_N: Tensor,
    stop: Tensor,
    flat: Tensor,
    du_NU: Tensor,
    dp_3N: Tensor,
    de_N: Tensor,
    partial_PF: Tensor,
    plan: Plan,
) -> None:
    """See ``reference_neuron.neuron_backward``."""
    blocks = plan.blocks or Blocks()
    programs, width = partial_PF.shape
    _neuron_backward_kernel[(programs,)](
        p_3N, e_N, alive_N, stop, flat, du_NU, dp_3N, de_N, partial_PF,
        e_N.shape[0], plan.clip, programs,
        H=plan.neuron, U=plan.inputs, F=width, BN=blocks.neuron_back_rows,
        EXACT=_exact(du_NU), num_warps=blocks.neuron_back_warps,
    )  # fmt: skip


def _exact(out: Tensor) -> str:
    """How the neuron's small products are made: better than what is kept of them."""
    return "ieee" if out.dtype == torch.float32 else "tf32"
