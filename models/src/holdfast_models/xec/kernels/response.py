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

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...device_math import gelu, gelu_both

__all__ = [
    "CUTS",
    "BlockHalf",
    "applied",
    "gradients",
    "squares",
    "toward_share",
    "weight_gradients",
]


@triton.jit
def _normed(d, at, there, w, b, c, EPS: tl.constexpr, C: tl.constexpr):
    """Normalised rows, what their norm makes of them, and by how much they were scaled."""
    x = tl.load(d + at, mask=there, other=0.0).to(tl.float32)
    mean = tl.sum(x, 1) / C
    apart = tl.where((c < C)[None, :], x - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(apart * apart, 1) / C + EPS)
    hat = apart * rstd[:, None]
    return hat, hat * w[None, :] + b[None, :], rstd


@triton.jit
def _counts(seen, n, P, p, SEEN):
    """1 where a place counts, 0 where it is hidden or there is none; SEEN is 0 if all count."""
    return tl.load(seen + (n * P + p) * SEEN, mask=p < P, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["N", "P", "SEEN", "PART", "GROUP"])
def _squares_kernel(
    d, seen, norm_w, norm_b, w1, b1, out, N, P, SEEN, PART, GROUP, EPS: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    c, k = tl.arange(0, BC), tl.program_id(2) * BK + tl.arange(0, BK)
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
            g *= _counts(seen, n, P, p, SEEN)[:, None]
            total += tl.sum(g * g, 0)
        tl.store(out + (n * tl.num_programs(1) + part) * K + k, total, mask=ink)


@triton.jit(do_not_specialize=["N", "P", "SEEN", "PART", "GROUP"])
def _applied_kernel(
    d, x, seen, norm_w, norm_b, w1, b1, scale, beta, w2, b2, out, N, P, SEEN, PART, GROUP,
    EPS: tl.constexpr, C: tl.constexpr, K: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr,
    BP: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    c = tl.arange(0, BC)
    inc = c < C
    nw, nb = tl.load(norm_w + c, mask=inc, other=0.0), tl.load(norm_b + c, mask=inc, other=0.0)
    end = tl.load(b2 + c, mask=inc, other=0.0)
    first = tl.program_id(0).to(tl.int64) * GROUP
    for i in range(0, tl.minimum(GROUP, N - first)):
        n = first + i
        for start in range(part * PART, tl.minimum((part + 1) * PART, P), BP):
            p = start + tl.arange(0, BP)
            inp = p < P
            at = (n * P + p)[:, None] * C + c[None, :]
            there = inp[:, None] & inc[None, :]
            _, h, _ = _normed(d, at, there, nw, nb, c, EPS, C)
            h = h.to(w1.dtype.element_ty)
            y = tl.zeros((BP, BC), tl.float32) + end[None, :]
            for chunk in range(0, K, BK):
                k = chunk + tl.arange(0, BK)
                ink = k < K
                both = inc[:, None] & ink[None, :]
                wide = tl.load(w1 + k[None, :] * C + c[:, None], mask=both, other=0.0)
                g = gelu(tl.dot(h, wide) + tl.load(b1 + k, mask=ink, other=0.0)[None, :])
                s = tl.load(scale + n * K + k, mask=ink, other=0.0)
                r = g * s[None, :] + tl.load(beta + k, mask=ink, other=0.0)[None, :]
                to = w2 + c[None, :] * K + k[:, None]
                narrow = tl.load(to, mask=ink[:, None] & inc[None, :], other=0.0)
                y = tl.dot(r.to(narrow.dtype), narrow, y)
            y *= _counts(seen, n, P, p, SEEN)[:, None]
            y += tl.load(x + at, mask=there, other=0.0).to(tl.float32)
            tl.store(out + at, y.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["N", "P", "SEEN", "PART", "GROUP"])
def _share_kernel(
    d, dout, seen, norm_w, norm_b, w1, b1, scale, w2, toward, dw2, db2, N, P, SEEN, PART, GROUP,
    EPS: tl.constexpr, C: tl.constexpr, K: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr,
    BP: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    c, k = tl.arange(0, BC), tl.program_id(2) * BK + tl.arange(0, BK)
    inc, ink = c < C, k < K
    nw, nb = tl.load(norm_w + c, mask=inc, other=0.0), tl.load(norm_b + c, mask=inc, other=0.0)
    wide = tl.load(w1 + k[None, :] * C + c[:, None], mask=inc[:, None] & ink[None, :], other=0.0)
    bias = tl.load(b1 + k, mask=ink, other=0.0)
    first = tl.program_id(0).to(tl.int64) * GROUP
    both = ink[:, None] & inc[None, :]
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
            dy *= _counts(seen, n, P, p, SEEN)[:, None]
            one = tl.dot(tl.trans(g.to(wide.dtype)), dy.to(wide.dtype), one)
            biases += tl.sum(dy, 0)
        narrow = tl.load(w2 + c[None, :] * K + k[:, None], mask=both, other=0.0).to(tl.float32)
        place = (n * tl.num_programs(1) + part) * K + k
        tl.store(toward + place, tl.sum(narrow * one, 1), mask=ink)
        weights += one * tl.load(scale + n * K + k, mask=ink, other=0.0)[:, None]
    slot = (tl.program_id(0) * tl.num_programs(1) + part).to(tl.int64)
    tl.store(dw2 + slot * (C * K) + c[None, :] * K + k[:, None], weights, mask=both)
    tl.store(db2 + slot * C + c, biases, mask=inc & (c * 0 + tl.program_id(2) == 0))


@triton.jit
def _wide_gradient(
    h, dy, counts, w1, w2, b1, scale, pull, c, k, n, C: tl.constexpr, K: tl.constexpr
):
    """Of the wide numbers before GELU; and the weights that made them, rounded as they are."""
    inc, ink = c < C, k < K
    both = inc[:, None] & ink[None, :]
    wide = tl.load(w1 + k[None, :] * C + c[:, None], mask=both, other=0.0)
    narrow = tl.load(w2 + c[:, None] * K + k[None, :], mask=both, other=0.0)
    bias = tl.load(b1 + k, mask=ink, other=0.0)
    s = tl.load(scale + n * K + k, mask=ink, other=0.0)
    q = tl.load(pull + n * K + k, mask=ink, other=0.0)
    g, slope = gelu_both(tl.dot(h, wide) + bias[None, :])
    dg = tl.dot(dy, narrow) * s[None, :] + g * q[None, :]
    return dg * slope * counts[:, None], wide


@triton.jit(do_not_specialize=["N", "P", "SEEN", "PART", "GROUP"])
def _back_kernel(
    d, dout, seen, norm_w, norm_b, w1, b1, scale, pull, w2, dd, sums, N, P, SEEN, PART, GROUP,
    EPS: tl.constexpr, C: tl.constexpr, K: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr,
    BP: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    c = tl.arange(0, BC)
    inc = c < C
    nw, nb = tl.load(norm_w + c, mask=inc, other=0.0), tl.load(norm_b + c, mask=inc, other=0.0)
    first = tl.program_id(0).to(tl.int64) * GROUP
    norm_weights = tl.zeros((BC,), tl.float32)
    norm_biases = tl.zeros((BC,), tl.float32)
    total = tl.zeros((BC,), tl.float32)
    for i in range(0, tl.minimum(GROUP, N - first)):
        n = first + i
        for start in range(part * PART, tl.minimum((part + 1) * PART, P), BP):
            p = start + tl.arange(0, BP)
            inp = p < P
            at = (n * P + p)[:, None] * C + c[None, :]
            there = inp[:, None] & inc[None, :]
            hat, h, rstd = _normed(d, at, there, nw, nb, c, EPS, C)
            counts = _counts(seen, n, P, p, SEEN)
            dy = tl.load(dout + at, mask=there, other=0.0).to(tl.float32) * counts[:, None]
            h, dy = h.to(w1.dtype.element_ty), dy.to(w2.dtype.element_ty)
            dh = tl.zeros((BP, BC), tl.float32)
            for chunk in range(0, K, BK):
                k = chunk + tl.arange(0, BK)
                du, wide = _wide_gradient(h, dy, counts, w1, w2, b1, scale, pull, c, k, n, C, K)
                dh = tl.dot(du.to(wide.dtype), tl.trans(wide), dh)
            norm_weights += tl.sum(dh * hat, 0)
            norm_biases += tl.sum(dh, 0)
            dhat = dh * nw[None, :]
            mean, along = tl.sum(dhat, 1) / C, tl.sum(dhat * hat, 1) / C
            back = rstd[:, None] * (dhat - mean[:, None] - hat * along[:, None])
            total += tl.sum(back, 0)
            tl.store(dd + at, back.to(dd.dtype.element_ty), mask=there)
    slot = (tl.program_id(0) * tl.num_programs(1) + part).to(tl.int64)
    tl.store(sums + slot * (3 * C) + c, norm_weights, mask=inc)
    tl.store(sums + slot * (3 * C) + C + c, norm_biases, mask=inc)
    tl.store(sums + slot * (3 * C) + 2 * C + c, total, mask=inc)


@triton.jit(do_not_specialize=["N", "P", "SEEN", "PART", "GROUP"])
def _weights_kernel(
    d, dout, seen, norm_w, norm_b, w1, b1, scale, pull, w2, dw1, db1, N, P, SEEN, PART, GROUP,
    EPS: tl.constexpr, C: tl.constexpr, K: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr,
    BP: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    c, k = tl.arange(0, BC), tl.program_id(2) * BK + tl.arange(0, BK)
    inc, ink = c < C, k < K
    nw, nb = tl.load(norm_w + c, mask=inc, other=0.0), tl.load(norm_b + c, mask=inc, other=0.0)
    first = tl.program_id(0).to(tl.int64) * GROUP
    weights = tl.zeros((BK, BC), tl.float32)
    biases = tl.zeros((BK,), tl.float32)
    for i in range(0, tl.minimum(GROUP, N - first)):
        n = first + i
        for start in range(part * PART, tl.minimum((part + 1) * PART, P), BP):
            p = start + tl.arange(0, BP)
            inp = p < P
            at = (n * P + p)[:, None] * C + c[None, :]
            there = inp[:, None] & inc[None, :]
            _, h, _ = _normed(d, at, there, nw, nb, c, EPS, C)
            counts = _counts(seen, n, P, p, SEEN)
            dy = tl.load(dout + at, mask=there, other=0.0).to(tl.float32) * counts[:, None]
            h, dy = h.to(w1.dtype.element_ty), dy.to(w2.dtype.element_ty)
            du, _ = _wide_gradient(h, dy, counts, w1, w2, b1, scale, pull, c, k, n, C, K)
            biases += tl.sum(du, 0)
            weights = tl.dot(tl.trans(du.to(h.dtype)), h, weights)
    slot = (tl.program_id(0) * tl.num_programs(1) + part).to(tl.int64)
    to = dw1 + slot * (C * K) + k[:, None] * C + c[None, :]
    tl.store(to, weights, mask=ink[:, None] & inc[None, :])
    tl.store(db1 + slot * K + k, biases, mask=ink)


class BlockHalf(NamedTuple):
    """The weights of that half of a block; products in the type of ``w1`` and ``w2``."""

    norm_w: Tensor
    norm_b: Tensor
    w1: Tensor
    b1: Tensor
    gamma: Tensor
    beta: Tensor
    w2: Tensor
    b2: Tensor


class Cut(NamedTuple):
    """How the work is cut, and what a kernel has to know of that."""

    grid: tuple[int, int, int]
    """Programs over images, over places and over wide channels."""
    numbers: tuple[int, ...]
    sizes: dict[str, Any]

    @property
    def parts(self) -> int:
        """Sums of each image."""
        return self.grid[1]

    @property
    def slots(self) -> int:
        """Sums over images."""
        return self.grid[0] * self.grid[1]


# Places and wide channels of a tile, warps and programs, of kernels for up to 32 and up to 64
# channels: all that a tile is made of has to fit into the registers. Found by trying, on an H200.
CUTS = {
    "squares": ((32, 128, 4, 4096), (32, 128, 4, 4096)),
    "applied": ((64, 64, 4, 4096), (64, 64, 4, 4096)),
    "share": ((64, 128, 4, 1024), (64, 64, 4, 1024)),
    "back": ((64, 64, 4, 4096), (64, 32, 4, 4096)),
    "weights": ((64, 64, 4, 2048), (64, 64, 4, 1024)),
}


def _cut(kernel: str, d_NPC: Tensor, seen_NP: Tensor, half: BlockHalf, eps: float) -> Cut:
    images, places, channels = d_NPC.shape
    wide = len(half.w1)
    tile, chunk, warps, programs = CUTS[kernel][channels > 32]
    block = max(16, triton.next_power_of_2(channels))
    tile = min(tile, max(16, triton.next_power_of_2(places)))
    chunk = min(chunk, max(16, triton.next_power_of_2(wide)))
    chunks = 1 if kernel in ("applied", "back") else triton.cdiv(wide, chunk)
    parts = min(triton.cdiv(places, tile), max(1, triton.cdiv(programs, images * chunks)))
    part = triton.cdiv(triton.cdiv(places, parts), tile) * tile
    parts = triton.cdiv(places, part)
    group = max(1, images * parts * chunks // programs)
    return Cut(
        (triton.cdiv(images, group), parts, chunks),
        (images, places, seen_NP.stride(1), part, group),
        {"EPS": eps, "C": channels, "K": wide, "BC": block, "BK": chunk, "BP": tile,
         "num_warps": warps},
    )  # fmt: skip


def squares(d_NPC: Tensor, seen_NP: Tensor, half: BlockHalf, eps: float) -> Tensor:
    """Squares of the wide channels, summed over the places of each image (N, K).

    ``seen_NP``: 1 or 0 in one piece of memory; or with strides of 0, where nothing is hidden.
    """
    cut = _cut("squares", d_NPC, seen_NP, half, eps)
    out = _empty(d_NPC, len(d_NPC), cut.parts, len(half.w1))
    _squares_kernel[cut.grid](
        d_NPC, seen_NP, half.norm_w, half.norm_b, half.w1, half.b1, out, *cut.numbers, **cut.sizes
    )
    return out.sum(1)


def applied(
    d_NPC: Tensor, x_NPC: Tensor, seen_NP: Tensor, half: BlockHalf, scale_NK: Tensor, eps: float
) -> Tensor:
    """The block's result; ``scale_NK`` is 1 + gamma share."""
    out = torch.empty_like(x_NPC)
    cut = _cut("applied", d_NPC, seen_NP, half, eps)
    _applied_kernel[cut.grid](
        d_NPC, x_NPC, seen_NP, half.norm_w, half.norm_b, half.w1, half.b1, scale_NK, half.beta,
        half.w2, half.b2, out, *cut.numbers, **cut.sizes,
    )  # fmt: skip
    return out


def toward_share(
    d_NPC: Tensor, dout_NPC: Tensor, seen_NP: Tensor, half: BlockHalf, scale_NK: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """What flows to g times share (N, K); gradients of W2 but for beta's part, and of b2."""
    wide, channels = half.w1.shape
    cut = _cut("share", d_NPC, seen_NP, half, eps)
    toward = _empty(d_NPC, len(d_NPC), cut.parts, wide)
    dw2, db2 = _empty(d_NPC, cut.slots, channels, wide), _empty(d_NPC, cut.slots, channels)
    _share_kernel[cut.grid](
        d_NPC, dout_NPC, seen_NP, half.norm_w, half.norm_b, half.w1, half.b1, scale_NK, half.w2,
        toward, dw2, db2, *cut.numbers, **cut.sizes,
    )  # fmt: skip
    return toward.sum(1), dw2.sum(0), db2.sum(0)


def gradients(
    d_NPC: Tensor, dout_NPC: Tensor, seen_NP: Tensor, half: BlockHalf, scale_NK: Tensor,
    pull_NK: Tensor, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of d, and of the norm's weight and bias with the sum of d's (3, C).

    ``pull_NK``: by how much a wide number is pulled in its own direction through ``share``.
    """
    cut = _cut("back", d_NPC, seen_NP, half, eps)
    dd, sums = torch.empty_like(d_NPC), _empty(d_NPC, cut.slots, 3, d_NPC.shape[2])
    _back_kernel[cut.grid](
        d_NPC, dout_NPC, seen_NP, half.norm_w, half.norm_b, half.w1, half.b1, scale_NK, pull_NK,
        half.w2, dd, sums, *cut.numbers, **cut.sizes,
    )  # fmt: skip
    return dd, sums.sum(0)


def weight_gradients(
    d_NPC: Tensor, dout_NPC: Tensor, seen_NP: Tensor, half: BlockHalf, scale_NK: Tensor,
    pull_NK: Tensor, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of W1 and b1; arguments as of ``gradients``."""
    wide, channels = half.w1.shape
    cut = _cut("weights", d_NPC, seen_NP, half, eps)
    dw1, db1 = _empty(d_NPC, cut.slots, wide, channels), _empty(d_NPC, cut.slots, wide)
    _weights_kernel[cut.grid](
        d_NPC, dout_NPC, seen_NP, half.norm_w, half.norm_b, half.w1, half.b1, scale_NK, pull_NK,
        half.w2, dw1, db1, *cut.numbers, **cut.sizes,
    )  # fmt: skip
    return dw1.sum(0), db1.sum(0)


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, device=like.device)
