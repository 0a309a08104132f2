"""h_t = decay_t * h_{t-1} + value_t in Triton: ``scan._loop``, and the same backward in time.

B batch, T tokens, F features.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TOKENS, _FEATURES = 64, 16  # of a tile


@triton.jit
def _combined(a1, b1, a2, b2):
    return a1 * a2, a2 * b1 + b2


@triton.jit
def _scan_kernel(
    decay, value, initial, out, tokens, features, decay_b, decay_t, decay_f,
    REVERSE: tl.constexpr, BT: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    f = tl.program_id(0) * BF + tl.arange(0, BF)
    t = tl.arange(0, BT)
    there = f < features
    h = tl.load(initial + row * features + f, mask=there, other=0.0)
    for begin in range(0, tokens, BT):
        step = begin + t  # the order of the recurrence; behind its end everything is masked
        inside = (step < tokens)[:, None] & there[None, :]
        if REVERSE:
            at = tokens - 1 - step
            of = at + 1  # the decay between a token and the one after it
            known = inside & (step > 0)[:, None]
        else:
            at = step
            of = step
            known = inside
        a = tl.load(
            decay + row * decay_b + of[:, None].to(tl.int64) * decay_t + f[None, :] * decay_f,
            mask=known,
            other=0.0,
        )
        place = (row * tokens + at[:, None]) * features + f[None, :]
        b = tl.load(value + place, mask=inside, other=0.0)
        kept, alone = tl.associative_scan((a, b), 0, _combined)
        states = alone + kept * h[None, :]
        tl.store(out + place, states, mask=inside)
        h = tl.sum(tl.where((t == BT - 1)[:, None], states, 0.0), 0)


def scan(decay: Tensor, value: Tensor, initial: Tensor, reverse: bool) -> Tensor:
    """All states, (B, T, F); ``reverse`` is h_t = decay_{t+1} h_{t+1} + value_t from zero."""
    batch, tokens, features = value.shape
    value, initial = value.contiguous(), initial.contiguous()
    out = torch.empty_like(value)
    if out.numel():
        _scan_kernel[(triton.cdiv(features, _FEATURES), batch)](
            decay, value, initial, out, tokens, features, *decay.stride(),
            REVERSE=reverse, BT=_TOKENS, BF=_FEATURES, num_warps=4,
        )  # fmt: skip
    return out
