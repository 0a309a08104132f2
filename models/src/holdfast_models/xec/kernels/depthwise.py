"""Triton kernels of the depthwise convolution of 7 x 7 cells, channels last.

N images, H x W cells, C channels; a program takes a tile of BP places and BC >= C channels.

Forward and backward to the input are one kernel: the second reads the filter the other way round.
A place stands for ROWS rows above each other, so that a cell that was read counts for all of them;
neighbours along a row come out of the cache.
"""

# Triton is there only where it can be used, and makes something else of its functions.
# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["convolved", "convolved_back", "filter_gradient"]

_ROWS = tl.constexpr(4)
REGISTERS = 128
"""Of a thread: with fewer, more of them hide what loads take."""


@triton.jit
def _tap(i: tl.constexpr, w0, w1, w2, w3, w4, w5, w6):
    """The i-th of them."""
    if i == 0:  # noqa: SIM116
        return w0
    elif i == 1:
        return w1
    elif i == 2:
        return w2
    elif i == 3:
        return w3
    elif i == 4:
        return w4
    elif i == 5:
        return w5
    else:
        return w6


@triton.jit(do_not_specialize=["H", "W"])
def _convolve_kernel(
    x, w, bias, add, out, H, W,
    C: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64) * (H * W * C)
    p = tl.program_id(1) * BP + tl.arange(0, BP)
    row, column = (p // W) * _ROWS, p % W
    c = tl.arange(0, BC)
    # The same channels in every row: so loaded, a filter is in the threads that multiply with it.
    alike = (p * 0)[:, None] + c[None, :]
    inside = alike < C
    at = image + (row * W + column)[:, None] * C + c[None, :]
    a0 = tl.zeros((BP, BC), tl.float32)
    if not BACK:
        a0 += tl.load(bias + c, mask=c < C, other=0.0)[None, :]
    a1, a2, a3 = a0, a0, a0
    for j in range(7):  # not unrolled: it would take a minute to compile
        filters = w + (6 - j if BACK else j) * C + alike
        w0 = tl.load(filters, mask=inside, other=0.0).to(tl.float32)
        w1 = tl.load(filters + 7 * C, mask=inside, other=0.0).to(tl.float32)
        w2 = tl.load(filters + 14 * C, mask=inside, other=0.0).to(tl.float32)
        w3 = tl.load(filters + 21 * C, mask=inside, other=0.0).to(tl.float32)
        w4 = tl.load(filters + 28 * C, mask=inside, other=0.0).to(tl.float32)
        w5 = tl.load(filters + 35 * C, mask=inside, other=0.0).to(tl.float32)
        w6 = tl.load(filters + 42 * C, mask=inside, other=0.0).to(tl.float32)
        if BACK:
            w0, w1, w2, w4, w5, w6 = w6, w5, w4, w2, w1, w0
        beside = column + (j - 3)
        there = (beside >= 0) & (beside < W)
        for k in tl.static_range(10):
            above = row + (k - 3)
            read = (there & (above >= 0) & (above < H))[:, None] & inside
            cells = x + image + (above * W + beside)[:, None] * C + c[None, :]
            v = tl.load(cells, mask=read, other=0.0).to(tl.float32)
            if k < 7:
                a0 += v * _tap(k, w0, w1, w2, w3, w4, w5, w6)
            if k >= 1 and k < 8:
                a1 += v * _tap(k - 1, w0, w1, w2, w3, w4, w5, w6)
            if k >= 2 and k < 9:
                a2 += v * _tap(k - 2, w0, w1, w2, w3, w4, w5, w6)
            if k >= 3:
                a3 += v * _tap(k - 3, w0, w1, w2, w3, w4, w5, w6)
    in0, in1 = (row < H)[:, None] & inside, (row + 1 < H)[:, None] & inside
    in2, in3 = (row + 2 < H)[:, None] & inside, (row + 3 < H)[:, None] & inside
    if BACK:
        a0 += tl.load(add + at, mask=in0, other=0.0).to(tl.float32)
        a1 += tl.load(add + at + W * C, mask=in1, other=0.0).to(tl.float32)
        a2 += tl.load(add + at + 2 * W * C, mask=in2, other=0.0).to(tl.float32)
        a3 += tl.load(add + at + 3 * W * C, mask=in3, other=0.0).to(tl.float32)
    tl.store(out + at, a0.to(out.dtype.element_ty), mask=in0)
    tl.store(out + at + W * C, a1.to(out.dtype.element_ty), mask=in1)
    tl.store(out + at + 2 * W * C, a2.to(out.dtype.element_ty), mask=in2)
    tl.store(out + at + 3 * W * C, a3.to(out.dtype.element_ty), mask=in3)


def convolved(x_NHWC: Tensor, weight: Tensor, bias_C: Tensor, dtype: torch.dtype) -> Tensor:
    """The convolution, with weights as ``nn.Conv2d`` holds them; ``x_NHWC`` is contiguous."""
    return _convolved(x_NHWC, weight, bias_C, None, dtype)


def convolved_back(d_NHWC: Tensor, weight: Tensor, add_NHWC: Tensor) -> Tensor:
    """What it gives back to its input, and ``add_NHWC``."""
    return _convolved(d_NHWC, weight, None, add_NHWC, add_NHWC.dtype)


def _convolved(
    x_NHWC: Tensor, weight: Tensor, bias: Tensor | None, add: Tensor | None, dtype: torch.dtype
) -> Tensor:
    images, rows, columns, channels = x_NHWC.shape
    taps_TC = weight.flatten(1).t().contiguous().to(x_NHWC.dtype)
    out = torch.empty_like(x_NHWC, dtype=dtype)
    wide = triton.next_power_of_2(channels)
    places = max(16, 1024 // wide)
    grid = (images, triton.cdiv(triton.cdiv(rows, 4) * columns, places))
    _convolve_kernel[grid](
        x_NHWC, taps_TC, bias, add, out, rows, columns,
        C=channels, BC=wide, BP=places, BACK=bias is None, maxnreg=REGISTERS,
    )  # fmt: skip
    return out


def filter_gradient(x_NHWC: Tensor, d_NHWC: Tensor, weight: Tensor) -> Tensor:
    """Of the weights, in full precision.

    By the library: a kernel of ours, with its sums in registers, took three times as long.
    """
    d_NCHW, x_NCHW = d_NHWC.permute(0, 3, 1, 2), x_NHWC.permute(0, 3, 1, 2)
    found = torch.ops.aten.convolution_backward(
        d_NCHW, x_NCHW, weight.to(x_NHWC.dtype), None, [1, 1], [3, 3], [1, 1], False, [0, 0],
        len(weight), [False, True, False],
    )  # fmt: skip
    return found[1].float().contiguous()
