"""Attention of one new token to a cache of a fixed size: ``CausalAttention._into`` in one kernel.

B batch, A heads, P places of the cache, d channels of a head, in two halves that a rotation turns
into each other. One program has one head of one row.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 4096  # numbers of keys and as many of values that a program looks at at once
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _attend_kernel(
    queries, new_keys, new_values, keys, values, count, mixed, stride_q, stride_k, stride_v,
    places, heads, half, window, log2_base, scale,
    ROPE: tl.constexpr, WINDOW: tl.constexpr, BP: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = tl.arange(0, BH)
    there = c < half
    channel = head * 2 * half + c
    place = tl.load(count + row).to(tl.int32)
    q_l = tl.load(queries + row * stride_q + channel, mask=there, other=0.0)
    q_r = tl.load(queries + row * stride_q + channel + half, mask=there, other=0.0)
    k_l = tl.load(new_keys + row * stride_k + channel, mask=there, other=0.0)
    k_r = tl.load(new_keys + row * stride_k + channel + half, mask=there, other=0.0)
    v_l = tl.load(new_values + row * stride_v + channel, mask=there, other=0.0)
    v_r = tl.load(new_values + row * stride_v + channel + half, mask=there, other=0.0)
    if ROPE:
        angle = place.to(tl.float32) * tl.exp2(-log2_base * (c.to(tl.float32) / half))
        sine, cosine = tl.sin(angle), tl.cos(angle)
        q_l, q_r = q_l * cosine - q_r * sine, q_l * sine + q_r * cosine
        k_l, k_r = k_l * cosine - k_r * sine, k_l * sine + k_r * cosine
    first = (row * heads + head) * places * 2 * half
    own = first + place.to(tl.int64) * 2 * half + c
    tl.store(keys + own, k_l, mask=there)
    tl.store(keys + own + half, k_r, mask=there)
    tl.store(values + own, v_l, mask=there)
    tl.store(values + own + half, v_r, mask=there)
    # The new token comes from registers: what was just written need not be read.
    q_l, q_r = q_l * (scale * _LOG2_E), q_r * (scale * _LOG2_E)
    best = tl.sum(q_l * k_l + q_r * k_r, 0)
    total = best * 0.0 + 1.0
    out_l, out_r = v_l, v_r
    at = place * 0
    if WINDOW:
        at = tl.maximum(0, place - window + 1) // BP * BP
    while at < place:
        p = at + tl.arange(0, BP)
        seen = p < place
        if WINDOW:
            seen = seen & (p > place - window)
        inside = seen[:, None] & there[None, :]
        at_p = first + p[:, None].to(tl.int64) * 2 * half + c[None, :]
        score = tl.sum(tl.load(keys + at_p, mask=inside, other=0.0) * q_l[None, :], 1)
        score += tl.sum(tl.load(keys + at_p + half, mask=inside, other=0.0) * q_r[None, :], 1)
        score = tl.where(seen, score, -float("inf"))
        better = tl.maximum(best, tl.max(score, 0))
        kept = tl.exp2(best - better)
        share = tl.exp2(score - better)
        of_l = tl.load(values + at_p, mask=inside, other=0.0)
        of_r = tl.load(values + at_p + half, mask=inside, other=0.0)
        out_l = out_l * kept + tl.sum(share[:, None] * of_l, 0)
        out_r = out_r * kept + tl.sum(share[:, None] * of_r, 0)
        total = total * kept + tl.sum(share, 0)
        best = better
        at += BP
    tl.store(mixed + row * heads * 2 * half + channel, out_l / total, mask=there)
    tl.store(mixed + row * heads * 2 * half + channel + half, out_r / total, mask=there)


def attend(
    queries_B1C: Tensor,
    keys_B1C: Tensor,
    values_B1C: Tensor,
    cached_keys: Tensor,
    cached_values: Tensor,
    count_B: Tensor,
    window: int,
    base: float,
) -> Tensor:
    """What the token takes from the values, (B, 1, C); its own key and value go into the cache.

    ``window`` 0: all before; ``base`` of the speeds of rotary positions, 0: none.
    """
    batch, heads, places, channels = cached_keys.shape
    mixed = torch.empty(queries_B1C.shape, dtype=queries_B1C.dtype, device=queries_B1C.device)
    given = [one if one.stride(2) == 1 else one.contiguous()
             for one in (queries_B1C, keys_B1C, values_B1C)]  # fmt: skip
    wide = triton.next_power_of_2(channels // 2)
    _attend_kernel[(batch, heads)](
        *given, cached_keys, cached_values, count_B, mixed, *(one.stride(0) for one in given),
        places, heads, channels // 2, window, math.log2(base or 1), channels**-0.5,
        ROPE=base > 0, WINDOW=window > 0, BP=max(16, _TILE // (2 * wide)), BH=wide, num_warps=4,
    )  # fmt: skip
    return mixed
