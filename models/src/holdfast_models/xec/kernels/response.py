"""Triton kernels of what a block does after it has mixed neighbours.

    g = gelu(norm(d) W1 + b1)          wide, 4 C channels: never leaves the registers
    n = |g| over the places of an image, share = n / (mean of n + eps)
    out = x + (g (1 + gamma share) + beta) W2 + b2

N images, P places, C channels, K = 4 C. One pass finds ``n``, another the result; backward one
finds what flows to ``share``, another the rest. Each computes ``g`` again: that is cheaper than to
read it. A program takes PART places of GROUP images, in tiles of BP; sums of products leave it
once, to a slot of its own: the same sum every time. Images of all sizes share a kernel, which takes
seconds to compile.
"""

# Triton is there only where it can be used, and makes something else of its functions.
# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...device_math import gelu, gelu_both

__all__ = ["CUTS", "Half", "applied", "gradients", "squares", "toward_share"]


@triton.jit
def _normed(d, at, there, w, b, c, EPS: tl.constexpr, C: tl.constexpr):
    """Normalised rows, what their norm makes of them, and by how much they were scaled."""
    x = tl.load(d + at, mask=there, other=0.0).to(tl.float32)
    mean = tl.sum(x, 1) / C
    apart = tl.where((c < C)[None, :], x - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(apart * apart, 1) / C + EPS)
    hat = apart * rstd[:, None]
    return hat, hat * w[None, :] + b[None, :], rstd


@triton.jit(do_not_specialize=["N", "P", "PART", "GROUP"])
def _squares_kernel(
    d, seen, norm_w, norm_b, w1, b1, out, N, P, PART, GROUP, EPS: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    c, k = tl.arange(0, BC), tl.arange(0, BK)
    inc, ink = c < C, k < K
    nw, nb = tl.load(norm_w + c, mask=inc, other=0.0), tl.load(norm_b + c, mask=inc, other=0.0)
    wide = tl.load(w1 + k[None, :] * C + c[:, None], mask=inc[:, None] & ink[None, :], other=0.0)
    bias = tl.load(b1 + k, mask=ink, other=0.0)
    first = tl.program_id(0).to(tl.int64) * GROUP
    for i in range(0, tl.minimum(GROUP, N - first)):
        n = first + i
        total = tl.zeros((BK,), tl.float32)
        for start in range(part * PART, tl.minimum((part + 1) * PART, P), BP):
            p = start + tl.arange(0, BP)
            inp = p < P
            at = (n * P + p)[:, None] * C + c[None, :]
            _, h, _ = _normed(d, at, inp[:, None] & inc[None, :], nw, nb, c, EPS, C)
            g = gelu(tl.dot(h.to(wide.dtype), wide) + bias[None, :])
            if MASKED:
                counts = tl.load(seen + n * P + p, mask=inp, other=0.0)
                g *= counts.to(tl.float32)[:, None]
            else:
                g = tl.where(inp[:, None], g, 0.0)
            total += tl.sum(g * g, 0)
        tl.store(out + (n * tl.num_programs(1) + part) * K + k, total, mask=ink)


@triton.jit(do_not_specialize=["N", "P", "PART", "GROUP"])
def _applied_kernel(
    d, x, seen, norm_w, norm_b, w1, b1, scale, beta, w2, b2, out, N, P, PART, GROUP,
    EPS: tl.constexpr, C: tl.constexpr, K: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr,
    BP: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    c, k = tl.arange(0, BC), tl.arange(0, BK)
    inc, ink = c < C, k < K
    nw, nb = tl.load(norm_w + c, mask=inc, other=0.0), tl.load(norm_b + c, mask=inc, other=0.0)
    wide = tl.load(w1 + k[None, :] * C + c[:, None], mask=inc[:, None] & ink[None, :], other=0.0)
    bias = tl.load(b1 + k, mask=ink, other=0.0)
    narrow = tl.load(w2 + c[None, :] * K + k[:, None], mask=ink[:, None] & inc[None, :], other=0.0)
    shift, end = tl.load(beta + k, mask=ink, other=0.0), tl.load(b2 + c, mask=inc, other=0.0)
    first = tl.program_id(0).to(tl.int64) * GROUP
    for i in range(0, tl.minimum(GROUP, N - first)):
        n = first + i
        s = tl.load(scale + n * K + k, mask=ink, other=0.0)
        for start in range(part * PART, tl.minimum((part + 1) * PART, P), BP):
            p = start + tl.arange(0, BP)
            inp = p < P
            at = (n * P + p)[:, None] * C + c[None, :]
            there = inp[:, None] & inc[None, :]
            _, h, _ = _normed(d, at, there, nw, nb, c, EPS, C)
            g = gelu(tl.dot(h.to(wide.dtype), wide) + bias[None, :])
            r = g * s[None, :] + shift[None, :]
            y = tl.dot(r.to(narrow.dtype), narrow) + end[None, :]
            if MASKED:
                counts = tl.load(seen + n * P + p, mask=inp, other=0.0)
                y *= counts.to(tl.float32)[:, None]
            y += tl.load(x + at, mask=there, other=0.0).to(tl.float32)
            tl.store(out + at, y.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["N", "P", "PART", "GROUP"])
def _share_kernel(
    d, dout, seen, norm_w, norm_b, w1, b1, scale, w2, toward, dw2, db2, N, P, PART, GROUP,
    EPS: tl.constexpr, C: tl.constexpr, K: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr,
    BP: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    c, k = tl.arange(0, BC), tl.arange(0, BK)
    inc, ink = c < C, k < K
    both = inc[:, None] & ink[None, :]
    nw, nb = tl.load(norm_w + c, mask=inc, other=0.0), tl.load(norm_b + c, mask=inc, other=0.0)
    wide = tl.load(w1 + k[None, :] * C + c[:, None], mask=both, other=0.0)
    bias = tl.load(b1 + k, mask=ink, other=0.0)
    first = tl.program_id(0).to(tl.int64) * GROUP
    weights = tl.zeros((BK, BC), tl.float32)
    biases = tl.zeros((BC,), tl.float32)
    for i in range(0, tl.minimum(GROUP, N - first)):
        n = first + i
        one = tl.zeros((BK, BC), tl.float32)
        for start in range(part * PART, tl.minimum((part + 1) * PART, P), BP):
            p = start + tl.arange(0, BP)
            inp = p < P
            at = (n * P + p)[:, None] * C + c[None, :]
            there = inp[:, None] & inc[None, :]
            _, h, _ = _normed(d, at, there, nw, nb, c, EPS, C)
            g = gelu(tl.dot(h.to(wide.dtype), wide) + bias[None, :])
            dy = tl.load(dout + at, mask=there, other=0.0).to(tl.float32)
            if MASKED:
                counts = tl.load(seen + n * P + p, mask=inp, other=0.0)
                dy *= counts.to(tl.float32)[:, None]
            one = tl.dot(tl.trans(g.to(wide.dtype)), dy.to(wide.dtype), one)
            biases += tl.sum(dy, 0)
        narrow = tl.load(
            w2 + c[None, :] * K + k[:, None], mask=ink[:, None] & inc[None, :], other=0.0
        )
        place = (n * tl.num_programs(1) + part) * K + k
        tl.store(toward + place, tl.sum(narrow.to(tl.float32) * one, 1), mask=ink)
        weights += one * tl.load(scale + n * K + k, mask=ink, other=0.0)[:, None]
    slot = (tl.program_id(0) * tl.num_programs(1) + part).to(tl.int64)
    to = dw2 + slot * (C * K) + c[None, :] * K + k[:, None]
    tl.store(to, weights, mask=ink[:, None] & inc[None, :])
    tl.store(db2 + slot * C + c, biases, mask=inc)


@triton.jit(do_not_specialize=["N", "P", "PART", "GROUP"])
def _gradients_kernel(
    d, dout, seen, norm_w, norm_b, w1, b1, scale, pull, w2, dd, dw1, db1, dnorm, N, P, PART, GROUP,
    EPS: tl.constexpr, C: tl.constexpr, K: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr,
    BP: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    c, k = tl.arange(0, BC), tl.arange(0, BK)
    inc, ink = c < C, k < K
    both = inc[:, None] & ink[None, :]
    nw, nb = tl.load(norm_w + c, mask=inc, other=0.0), tl.load(norm_b + c, mask=inc, other=0.0)
    wide = tl.load(w1 + k[None, :] * C + c[:, None], mask=both, other=0.0)
    bias = tl.load(b1 + k, mask=ink, other=0.0)
    narrow = tl.load(w2 + c[:, None] * K + k[None, :], mask=both, other=0.0)
    first = tl.program_id(0).to(tl.int64) * GROUP
    weights = tl.zeros((BK, BC), tl.float32)
    biases = tl.zeros((BK,), tl.float32)
    norm_weights = tl.zeros((BC,), tl.float32)
    norm_biases = tl.zeros((BC,), tl.float32)
    for i in range(0, tl.minimum(GROUP, N - first)):
        n = first + i
        s = tl.load(scale + n * K + k, mask=ink, other=0.0)
        q = tl.load(pull + n * K + k, mask=ink, other=0.0)
        for start in range(part * PART, tl.minimum((part + 1) * PART, P), BP):
            p = start + tl.arange(0, BP)
            inp = p < P
            at = (n * P + p)[:, None] * C + c[None, :]
            there = inp[:, None] & inc[None, :]
            hat, h, rstd = _normed(d, at, there, nw, nb, c, EPS, C)
            dy = tl.load(dout + at, mask=there, other=0.0).to(tl.float32)
            counts = inp.to(tl.float32)
            if MASKED:
                counts = tl.load(seen + n * P + p, mask=inp, other=0.0).to(tl.float32)
                dy *= counts[:, None]
            half = h.to(wide.dtype)
            g, slope = gelu_both(tl.dot(half, wide) + bias[None, :])
            dg = tl.dot(dy.to(narrow.dtype), narrow) * s[None, :] + g * q[None, :]
            du = dg * slope * counts[:, None]
            biases += tl.sum(du, 0)
            du = du.to(wide.dtype)
            weights = tl.dot(tl.trans(du), half, weights)
            dh = tl.dot(du, tl.trans(wide))
            norm_weights += tl.sum(dh * hat, 0)
            norm_biases += tl.sum(dh, 0)
            dhat = dh * nw[None, :]
            mean, along = tl.sum(dhat, 1) / C, tl.sum(dhat * hat, 1) / C
            back = rstd[:, None] * (dhat - mean[:, None] - hat * along[:, None])
            tl.store(dd + at, back.to(dd.dtype.element_ty), mask=there)
    slot = (tl.program_id(0) * tl.num_programs(1) + part).to(tl.int64)
    to = dw1 + slot * (C * K) + k[:, None] * C + c[None, :]
    tl.store(to, weights, mask=ink[:, None] & inc[None, :])
    tl.store(db1 + slot * K + k, biases, mask=ink)
    tl.store(dnorm + slot * (2 * C) + c, norm_weights, mask=inc)
    tl.store(dnorm + slot * (2 * C) + C + c, norm_biases, mask=inc)


class Cut(NamedTuple):
    """How the work is cut: programs over images and over places, and the sizes of their tiles."""

    group: int
    part: int
    parts: int
    grid: tuple[int, int]
    sizes: dict[str, int]


# Places of a tile, warps and programs, of kernels for up to 32 channels and for more: the wide
# numbers of a tile have to fit into the registers. Found by trying, on an H200.
CUTS = {
    "squares": ((64, 4, 4096), (32, 8, 4096)),
    "applied": ((64, 4, 4096), (32, 8, 4096)),
    "share": ((64, 4, 2048), (32, 8, 2048)),
    "gradients": ((32, 4, 2048), (32, 8, 2048)),
}


def _cut(kernel: str, d_NPC: Tensor, wide: int) -> Cut:
    images, places, channels = d_NPC.shape
    tile, warps, programs = CUTS[kernel][channels > 32]
    block = max(16, triton.next_power_of_2(channels))
    tile = min(tile, max(16, triton.next_power_of_2(places)))
    parts = min(triton.cdiv(places, tile), max(1, triton.cdiv(programs, images)))
    part = triton.cdiv(triton.cdiv(places, parts), tile) * tile
    parts = triton.cdiv(places, part)
    group = max(1, images * parts // programs)
    sizes = {"C": channels, "K": wide, "BC": block, "BP": tile, "num_warps": warps}
    sizes["BK"] = max(16, triton.next_power_of_2(wide))
    return Cut(group, part, parts, (triton.cdiv(images, group), parts), sizes)


class Half(NamedTuple):
    """The weights of that half of a block; products in the type of ``w1`` and ``w2``."""

    norm_w: Tensor
    norm_b: Tensor
    w1: Tensor
    b1: Tensor
    gamma: Tensor
    beta: Tensor
    w2: Tensor
    b2: Tensor


def squares(d_NPC: Tensor, seen_NP: Tensor | None, half: Half, eps: float) -> Tensor:
    """Squares of the wide channels, summed over the places of each image (N, K)."""
    wide = len(half.w1)
    cut = _cut("squares", d_NPC, wide)
    out = d_NPC.new_empty((len(d_NPC), cut.parts, wide), dtype=torch.float32)
    _squares_kernel[cut.grid](
        d_NPC, seen_NP, half.norm_w, half.norm_b, half.w1, half.b1, out,
        *d_NPC.shape[:2], cut.part, cut.group, EPS=eps, **cut.sizes, MASKED=seen_NP is not None,
    )  # fmt: skip
    return out.sum(1)


def applied(
    d_NPC: Tensor, x_NPC: Tensor, seen_NP: Tensor | None, half: Half, scale_NK: Tensor, eps: float
) -> Tensor:
    """The block's result; ``scale_NK`` is 1 + gamma share."""
    out = torch.empty_like(x_NPC)
    cut = _cut("applied", d_NPC, len(half.w1))
    _applied_kernel[cut.grid](
        d_NPC, x_NPC, seen_NP, half.norm_w, half.norm_b, half.w1, half.b1, scale_NK, half.beta,
        half.w2, half.b2, out, *d_NPC.shape[:2], cut.part, cut.group, EPS=eps, **cut.sizes,
        MASKED=seen_NP is not None,
    )  # fmt: skip
    return out


def toward_share(
    d_NPC: Tensor, dout_NPC: Tensor, seen_NP: Tensor | None, half: Half, scale_NK: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """What flows to g times share (N, K); gradients of W2 but for beta's part, and of b2."""
    wide, channels = half.w1.shape
    cut = _cut("share", d_NPC, wide)
    programs = cut.grid[0] * cut.grid[1]
    toward = d_NPC.new_empty((len(d_NPC), cut.parts, wide), dtype=torch.float32)
    dw2 = d_NPC.new_empty((programs, channels, wide), dtype=torch.float32)
    db2 = d_NPC.new_empty((programs, channels), dtype=torch.float32)
    _share_kernel[cut.grid](
        d_NPC, dout_NPC, seen_NP, half.norm_w, half.norm_b, half.w1, half.b1, scale_NK, half.w2,
        toward, dw2, db2, *d_NPC.shape[:2], cut.part, cut.group, EPS=eps, **cut.sizes,
        MASKED=seen_NP is not None,
    )  # fmt: skip
    return toward.sum(1), dw2.sum(0), db2.sum(0)


def gradients(
    d_NPC: Tensor, dout_NPC: Tensor, seen_NP: Tensor | None, half: Half, scale_NK: Tensor,
    pull_NK: Tensor, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of d, W1, b1, and of the norm's weight and bias (2, C).

    ``pull_NK``: by how much a wide number is pulled in its own direction through ``share``.
    """
    wide, channels = half.w1.shape
    cut = _cut("gradients", d_NPC, wide)
    programs = cut.grid[0] * cut.grid[1]
    dd = torch.empty_like(d_NPC)
    dw1 = d_NPC.new_empty((programs, wide, channels), dtype=torch.float32)
    db1 = d_NPC.new_empty((programs, wide), dtype=torch.float32)
    dnorm = d_NPC.new_empty((programs, 2, channels), dtype=torch.float32)
    _gradients_kernel[cut.grid](
        d_NPC, dout_NPC, seen_NP, half.norm_w, half.norm_b, half.w1, half.b1, scale_NK, pull_NK,
        half.w2, dd, dw1, db1, dnorm, *d_NPC.shape[:2], cut.part, cut.group, EPS=eps,
        **cut.sizes, MASKED=seen_NP is not None,
    )  # fmt: skip
    return dd, dw1.sum(0), db1.sum(0), dnorm.sum(0)
