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

from .device_math import gelu, gelu_both
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
    w2 = tl.load(w + second + unit[:, None] * H + unit[None, :])  # [out, in]
    x2 = tl.dot(g1, tl.trans(w2), input_precision=EXACT)
    rest = w + second + H * H
    hat2, _ = _normed(x2 + tl.load(rest + unit)[None, :], H)
    g2 = gelu(hat2 * tl.load(rest + H + unit)[None, :] + tl.load(rest + 2 * H + unit)[None, :])
    # what the folded layer would have answered: only measured
    answer = tl.arange(0, ANSWER)
    w3 = tl.load(answer_w + answer[:, None] * H + unit[None, :])
    u = tl.dot(g2, tl.trans(w3), input_precision=EXACT) + tl.load(answer_b + answer)[None, :]
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


@triton.jit
def _five(a0, a1, a2, a3, a4, b0, b1, b2, b3, b4):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4


@triton.jit
def _earlier(d, slope, row, there, more):
    """The gradient before a step: what came past the neuron, and what came through it."""
    past = tl.load(d + row, mask=there, other=0.0) * tl.load(slope + row, mask=there, other=0.0)
    tl.store(d + row, past + more, mask=there)


@triton.jit
def _plus(at, value, mask):
    tl.store(at, tl.load(at, mask=mask, other=0.0) + value, mask=mask)


# Single numbers lie where they lie: without this each place would be a kernel of its own.
@triton.jit(do_not_specialize_on_alignment=["stop"])
def _neuron_backward_kernel(
    p, e, alive, stop, w, du, slopes, dp, de, partial, flows, clip, programs,
    H: tl.constexpr, U: tl.constexpr, F: tl.constexpr, BN: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    unit = tl.arange(0, H)
    second: tl.constexpr = 7 * H
    rest = w + second + H * H
    w2 = tl.load(w + second + unit[:, None] * H + unit[None, :])  # [out, in]
    stopped = tl.load(stop)
    sixteen = tl.arange(0, 16)[:, None]
    # Summed over the rows of a block at once: as rows they would take all registers.
    sum_w2 = tl.zeros((H, H), tl.float32)  # [out, in]
    sum_w1 = tl.zeros((16, H), tl.float32)  # x, y, z, energy, bias, nothing
    sum_g1 = tl.zeros((H,), tl.float32)
    sum_s1 = tl.zeros((H,), tl.float32)
    sum_b2 = tl.zeros((H,), tl.float32)
    sum_g2 = tl.zeros((H,), tl.float32)
    sum_s2 = tl.zeros((H,), tl.float32)
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
        dseen = tl.load(base + H, mask=active & (tl.abs(energy) <= clip), other=0.0).to(tl.float32)
        hat1, rstd1 = _first_layer(px, py, pz, energy, w, unit, H)
        gain1 = tl.load(w + 5 * H + unit)[None, :]
        g1, slope1 = gelu_both(hat1 * gain1 + tl.load(w + 6 * H + unit)[None, :])
        x2 = tl.dot(g1, tl.trans(w2), input_precision=EXACT)
        hat2, rstd2 = _normed(x2 + tl.load(rest + unit)[None, :], H)
        gain2 = tl.load(rest + H + unit)[None, :]
        g2, slope2 = gelu_both(hat2 * gain2 + tl.load(rest + 2 * H + unit)[None, :])
        dy2 = tl.where(tl.abs(g2) <= clip, dg2.to(tl.float32), 0.0) * slope2
        dx2 = _normed_back(dy2 * gain2, hat2, rstd2, H)
        sum_w2 += tl.dot(tl.trans(dx2), g1, input_precision=EXACT)
        dy1 = tl.dot(dx2, w2, input_precision=EXACT) * slope1
        dx1 = _normed_back(dy1 * gain1, hat1, rstd1, H)
        at = row[None, :]
        read = tl.load(p + sixteen * flows + at, mask=(sixteen < 3) & there[None, :], other=0.0)
        read += tl.load(e + at + 0 * sixteen, mask=(sixteen == 3) & there[None, :], other=0.0)
        read = tl.where(sixteen == 4, 1.0, read)
        sum_w1 += tl.dot(read, dx1, input_precision=EXACT)
        one, two, three, four, five = tl.reduce(
            (dy1 * hat1, dy1, dx2, dy2 * hat2, dy2), 0, _five
        )
        sum_g1 += one
        sum_s1 += two
        sum_b2 += three
        sum_g2 += four
        sum_s2 += five
        _earlier(dp, slopes + 2 * flows, row, there, tl.sum(dx1 * tl.load(w + unit)[None, :], 1))
        dy = tl.sum(dx1 * tl.load(w + H + unit)[None, :], 1)
        _earlier(dp + flows, slopes + 3 * flows, row, there, dy)
        dz = tl.sum(dx1 * tl.load(w + 2 * H + unit)[None, :], 1)
        _earlier(dp + 2 * flows, slopes + 4 * flows, row, there, dz)
        dseen += tl.sum(dx1 * tl.load(w + 3 * H + unit)[None, :], 1)
        _earlier(de, slopes + flows, row, there, dseen)
    own = partial + pid * F + unit
    all_ = unit < H
    _plus(own[None, :] + sixteen * H, sum_w1, (sixteen < 5) & all_[None, :])
    _plus(own + 5 * H, sum_g1, all_)
    _plus(own + 6 * H, sum_s1, all_)
    square = partial + pid * F + second + unit[:, None] * H + unit[None, :]
    tl.store(square, tl.load(square) + sum_w2)
    own += second + H * H
    _plus(own, sum_b2, all_)
    _plus(own + H, sum_g2, all_)
    _plus(own + 2 * H, sum_s2, all_)


def neuron_backward(
    p_3N: Tensor,
    e_N: Tensor,
    alive_N: Tensor,
    stop: Tensor,
    flat: Tensor,
    du_NU: Tensor,
    slopes_8N: Tensor,
    dp_3N: Tensor,
    de_N: Tensor,
    partial_PF: Tensor,
    plan: Plan,
) -> None:
    """See ``reference_neuron.neuron_backward``."""
    blocks = plan.blocks or Blocks()
    programs, width = partial_PF.shape
    _neuron_backward_kernel[(programs,)](
        p_3N, e_N, alive_N, stop, flat, du_NU, slopes_8N, dp_3N, de_N, partial_PF,
        e_N.shape[0], plan.clip, programs,
        H=plan.neuron, U=plan.inputs, F=width, BN=blocks.neuron_back_rows,
        EXACT=_exact(du_NU), num_warps=blocks.neuron_back_warps,
    )  # fmt: skip


def _exact(out: Tensor) -> str:
    """How the neuron's small products are made: better than what is kept of them."""
    return "ieee" if out.dtype == torch.float32 else "tf32"
