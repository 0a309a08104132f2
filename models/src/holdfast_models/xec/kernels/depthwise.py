"""Triton kernels of the depthwise convolution of 7 x 7 cells, channels last.

N images, H x W cells, C channels; a program takes a tile of BP places and BC >= C channels.

Forward and backward to the input are one kernel: the second reads the filter the other way round.
A place stands for ROWS rows above each other, so that a cell that was read counts for all of them;
neighbours along a row come out of the cache. Sums of products leave the registers once per program,
each to a slot of its own: the same sum every time.
"""

# Triton is there only where it can be used, and makes something else of its functions.
# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["convolved", "filter_gradients"]

_ROWS = tl.constexpr(4)
_PROGRAMS = 264  # that share the sums of the filter's gradient, for each row of it


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
    x, w, bias, out, H, W,
    C: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64) * (H * W * C)
    p = tl.program_id(1) * BP + tl.arange(0, BP)
    row, column = (p // W) * _ROWS, p % W
    c = tl.arange(0, BC)
    # The same channels in every row: so loaded, a filter is in the threads that multiply with it.
    alike = (p * 0)[:, None] + c[None, :]
    inside = alike < C
    start = tl.zeros((BP, BC), tl.float32)
    if not BACK:
        start += tl.load(bias + c, mask=c < C, other=0.0)[None, :]
    a0, a1, a2, a3 = start, start, start, start
    for j in tl.static_range(7):
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
    to = out + image + (row * W + column)[:, None] * C + c[None, :]
    tl.store(to, a0.to(out.dtype.element_ty), mask=(row < H)[:, None] & inside)
    tl.store(to + W * C, a1.to(out.dtype.element_ty), mask=(row + 1 < H)[:, None] & inside)
    tl.store(to + 2 * W * C, a2.to(out.dtype.element_ty), mask=(row + 2 < H)[:, None] & inside)
    tl.store(to + 3 * W * C, a3.to(out.dtype.element_ty), mask=(row + 3 < H)[:, None] & inside)


@triton.jit(do_not_specialize=["N", "H", "W", "tiles"])
def _filter_kernel(
    x, d, out, N, H, W, tiles,
    C: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0)
    c = tl.arange(0, BC)
    inside = c < C
    g0 = tl.zeros((BP, BC), tl.float32)
    g1, g2, g3, g4, g5, g6, sums = g0, g0, g0, g0, g0, g0, g0
    start = tl.program_id(1).to(tl.int64)
    for tile in range(0, N * tiles - start, tl.num_programs(1)):
        image = (start + tile) // tiles * (H * W * C)
        p = (start + tile) % tiles * BP + tl.arange(0, BP)
        row, column = p // W, p % W
        across = inside[None, :]
        here = (p < H * W)[:, None] & across
        dv = tl.load(d + image + p[:, None] * C + c[None, :], mask=here, other=0.0).to(tl.float32)
        sums += dv
        above = row + (i - 3)
        there = (p < H * W) & (above >= 0) & (above < H)
        cells = x + image + (above * W + column)[:, None] * C + c[None, :]
        for j in tl.static_range(7):
            beside = column + (j - 3)
            read = (there & (beside >= 0) & (beside < W))[:, None] & across
            v = dv * tl.load(cells + (j - 3) * C, mask=read, other=0.0).to(tl.float32)
            if j == 0:
                g0 += v
            elif j == 1:
                g1 += v
            elif j == 2:
                g2 += v
            elif j == 3:
                g3 += v
            elif j == 4:
                g4 += v
            elif j == 5:
                g5 += v
            else:
                g6 += v
    to = out + tl.program_id(1) * (50 * C) + i * (7 * C) + c
    tl.store(to, tl.sum(g0, 0), mask=inside)
    tl.store(to + C, tl.sum(g1, 0), mask=inside)
    tl.store(to + 2 * C, tl.sum(g2, 0), mask=inside)
    tl.store(to + 3 * C, tl.sum(g3, 0), mask=inside)
    tl.store(to + 4 * C, tl.sum(g4, 0), mask=inside)
    tl.store(to + 5 * C, tl.sum(g5, 0), mask=inside)
    tl.store(to + 6 * C, tl.sum(g6, 0), mask=inside)
    tl.store(to + 7 * C, tl.sum(sums, 0), mask=inside & (c * 0 + i == 6))


def convolved(
    x_NHWC: Tensor, w_TC: Tensor, bias_C: Tensor, dtype: torch.dtype, *, back: bool = False
) -> Tensor:
    """The convolution, or with ``back`` what it gives back to its input.

    Args:
        x_NHWC: contiguous.
        w_TC: the 49 taps of each channel; rounded to the type of ``x_NHWC``.
        bias_C: not read with ``back``.
        dtype: of the result.
        back: with the filter the other way round.
    """
    images, rows, columns, channels = x_NHWC.shape
    out = torch.empty_like(x_NHWC, dtype=dtype)
    wide = triton.next_power_of_2(channels)
    places = max(16, 1024 // wide)
    grid = (images, triton.cdiv(triton.cdiv(rows, 4) * columns, places))
    _convolve_kernel[grid](
        x_NHWC,
        w_TC.to(x_NHWC.dtype),
        bias_C,
        out,
        rows,
        columns,
        C=channels,
        BC=wide,
        BP=places,
        BACK=back,
    )
    return out


def filter_gradients(x_NHWC: Tensor, d_NHWC: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the taps (49, C) and of the bias (C,), of the gradient of the result."""
    images, rows, columns, channels = x_NHWC.shape
    wide = triton.next_power_of_2(channels)
    places = max(16, 1024 // wide)
    tiles = triton.cdiv(rows * columns, places)
    programs = min(_PROGRAMS, images * tiles)
    parts = torch.empty(programs, 50, channels, device=x_NHWC.device)
    _filter_kernel[7, programs](
        x_NHWC, d_NHWC, parts, images, rows, columns, tiles, C=channels, BC=wide, BP=places
    )
    sums = parts.sum(0)
    return sums[:49], sums[49]
