"""Triton kernels of the neuron.

N flows, H hidden width, o output, U columns of layer 0's input, P slots, F numbers of its weights.

Each program adds its part of a sum to a slot of its own, step after step: no atomic additions, the
same sum every time. Both layers are products of tensor cores, so that a row of numbers is in the
same threads from end to end. No loops: with one, a program takes twice the registers.
"""

# Triton is there only where it can be used, and makes something else of its functions.
# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...device_math import gelu, gelu_both
from .plan import BlockSizes, KernelPlan, neuron_tile

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
def _read(q, w, row, there, unit, flows, H: tl.constexpr):
    """What the neuron reads (x, y, z, energy, a one for the bias, zeros) and its first weights."""
    column = tl.arange(0, 16)
    at = q + column[None, :] * flows + row[:, None]
    read = tl.load(at, mask=there[:, None] & (column < 4)[None, :], other=0.0)
    read = tl.where(column[None, :] == 4, 1.0, read)
    inside = (column < 5)[:, None]
    return read, tl.load(w + column[:, None] * H + unit[None, :], mask=inside, other=0.0)


@triton.jit
def _bounded(v, clip):
    v = tl.where(v == v, v, 0.0)
    return tl.minimum(tl.maximum(v, -clip), clip)


# Single numbers lie where they lie: without this each place would be a kernel of its own.
@triton.jit(do_not_specialize_on_alignment=["stop", "most", "guarded"])
def _neuron_forward_kernel(
    q, alive, stop, w, answer_w, answer_b, out, most, guarded, flows, row_stride, clip,
    H: tl.constexpr, ANSWER: tl.constexpr, U: tl.constexpr, BN: tl.constexpr,
    EXACT: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    row = pid * BN + tl.arange(0, BN)
    unit = tl.arange(0, H)
    there = row < flows
    active = (tl.load(alive + row, mask=there, other=0) != 0) & (tl.load(stop) == 0)
    energy = tl.load(q + 3 * flows + row, mask=there, other=0.0)
    read, w1 = _read(q, w, row, there, unit, flows, H)
    hat1, _ = _normed(tl.dot(read, w1, input_precision=FIRST), H)
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
        mask = there[:, None] & (unit + begin < U)[None, :]
        tl.store(base + begin + unit[None, :], tail.to(out.dtype.element_ty), mask=mask)


def neuron_forward(
    q_4N: Tensor,
    alive_N: Tensor,
    stop: Tensor,
    flat: Tensor,
    answer_w: Tensor,
    answer_b: Tensor,
    out_NR: Tensor,
    most_P: Tensor,
    guarded_P: Tensor,
    plan: KernelPlan,
) -> None:
    """See ``reference.neuron_forward``."""
    blocks = plan.blocks or BlockSizes()
    flows, rows = q_4N.shape[1], neuron_tile(blocks.neuron_rows, plan.neuron)
    _neuron_forward_kernel[(triton.cdiv(flows, rows),)](
        q_4N, alive_N, stop, flat, answer_w, answer_b, out_NR, most_P, guarded_P,
        flows, out_NR.stride(0), plan.clip,
        H=plan.neuron, ANSWER=plan.answer, U=plan.inputs, BN=rows, **_exact(out_NR),
        num_warps=blocks.neuron_warps,
    )  # fmt: skip


@triton.jit
def _two(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@triton.jit
def _three(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit
def _plus(at, value, mask):
    tl.store(at, tl.load(at, mask=mask, other=0.0) + value, mask=mask)


# Single numbers lie where they lie: without this each place would be a kernel of its own.
@triton.jit(do_not_specialize_on_alignment=["stop"])
def _neuron_backward_kernel(
    q, alive, stop, w, du, slopes, d, partial, flows, clip,
    H: tl.constexpr, U: tl.constexpr, F: tl.constexpr, BN: tl.constexpr,
    EXACT: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    unit = tl.arange(0, H)
    row = pid * BN + tl.arange(0, BN)
    there = row < flows
    active = (tl.load(alive + row, mask=there, other=0) != 0) & (tl.load(stop) == 0)
    base = du + row.to(tl.int64)[:, None] * U
    dg2 = tl.load(base + unit[None, :], mask=active[:, None], other=0.0)
    read, w1 = _read(q, w, row, there, unit, flows, H)
    hat1, rstd1 = _normed(tl.dot(read, w1, input_precision=FIRST), H)
    gain1 = tl.load(w + 5 * H + unit)[None, :]
    g1, slope1 = gelu_both(hat1 * gain1 + tl.load(w + 6 * H + unit)[None, :])
    w2 = tl.load(w + 7 * H + unit[:, None] * H + unit[None, :])  # [out, in]
    rest = w + 7 * H + H * H
    x2 = tl.dot(g1, tl.trans(w2), input_precision=EXACT)
    hat2, rstd2 = _normed(x2 + tl.load(rest + unit)[None, :], H)
    gain2 = tl.load(rest + H + unit)[None, :]
    g2, slope2 = gelu_both(hat2 * gain2 + tl.load(rest + 2 * H + unit)[None, :])
    dy2 = tl.where(tl.abs(g2) <= clip, dg2.to(tl.float32), 0.0) * slope2
    dx2 = _normed_back(dy2 * gain2, hat2, rstd2, H)
    # Sums where what they need is still there: numbers that wait for it take registers.
    own = partial + pid * F + unit
    ours = own + 7 * H + H * H
    all_ = unit < H
    sum_b2, sum_g2, sum_s2 = tl.reduce((dx2, dy2 * hat2, dy2), 0, _three)
    _plus(ours, sum_b2, all_)
    _plus(ours + H, sum_g2, all_)
    _plus(ours + 2 * H, sum_s2, all_)
    dy1 = tl.dot(dx2, w2, input_precision=EXACT) * slope1
    dx1 = _normed_back(dy1 * gain1, hat1, rstd1, H)
    sum_g1, sum_s1 = tl.reduce((dy1 * hat1, dy1), 0, _two)
    _plus(own + 5 * H, sum_g1, all_)
    _plus(own + 6 * H, sum_s1, all_)
    column = tl.arange(0, 16)
    at = column[None, :] * flows + row[:, None]
    four = there[:, None] & (column < 4)[None, :]
    dread = tl.dot(dx1, tl.trans(w1), input_precision=EXACT)
    dread += tl.load(d + at, mask=four, other=0.0) * tl.load(slopes + at, mask=four, other=0.0)
    seen = active[:, None] & (column == 3)[None, :] & (tl.abs(read) <= clip)
    dread += tl.load(base + H + 0 * column[None, :], mask=seen, other=0.0).to(tl.float32)
    tl.store(d + at, dread, mask=four)
    sum_w1 = tl.dot(tl.trans(read), dx1, input_precision=EXACT)
    _plus(own[None, :] + column[:, None] * H, sum_w1, (column < 5)[:, None])
    sum_w2 = tl.dot(tl.trans(dx2), g1, input_precision=EXACT)  # [out, in]
    _plus(own[None, :] + 7 * H + unit[:, None] * H, sum_w2, all_[None, :])


def neuron_backward(
    q_4N: Tensor,
    alive_N: Tensor,
    stop: Tensor,
    flat: Tensor,
    du_NU: Tensor,
    slopes_8N: Tensor,
    d_4N: Tensor,
    partial_PF: Tensor,
    plan: KernelPlan,
) -> None:
    """See ``reference.neuron_backward``."""
    blocks = plan.blocks or BlockSizes()
    programs, width = partial_PF.shape
    _neuron_backward_kernel[(programs,)](
        q_4N, alive_N, stop, flat, du_NU, slopes_8N, d_4N, partial_PF, q_4N.shape[1], plan.clip,
        H=plan.neuron, U=plan.inputs, F=width,
        BN=neuron_tile(blocks.neuron_back_rows, plan.neuron), **_exact(du_NU),
        num_warps=blocks.neuron_back_warps,
    )  # fmt: skip


def _exact(out: Tensor) -> dict[str, str]:
    """How the small products are made: better than what is kept of them, positions as in fp32."""
    if out.dtype == torch.float32:
        return {"EXACT": "ieee", "FIRST": "ieee"}
    return {"EXACT": "tf32", "FIRST": "tf32x3"}
