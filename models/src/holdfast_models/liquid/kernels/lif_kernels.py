"""Spiking units over all steps in Triton: ``LIF.run`` and its gradient.

S steps, N units of all samples and tokens. A membrane is in registers from the first to the last
step; spikes and membranes of every step are written once.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...device_math import sigmoid
from .ops import BLOCK

_WARPS = 4
_PI = tl.constexpr(3.141592653589793)
_RESETS = {"none": 0, "subtract": 1, "zero": 2}
_SURROGATES = {"fast_sigmoid": 0, "atan": 1, "sigmoid": 2, "triangle": 3}


@triton.jit
def _lif_forward_kernel(
    current, start, slope, train, membranes, rate, mean, near, steps, units, stride,
    beta, threshold, START: tl.constexpr, RESET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    n = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = n < units
    u = tl.zeros([BLOCK], tl.float32)
    if START:
        u = tl.load(start + n, mask=there, other=0.0)
    k = tl.load(slope)
    spikes = tl.zeros([BLOCK], tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    close = tl.zeros([BLOCK], tl.float32)
    for s in range(steps):
        i = tl.load(current + s * stride + n, mask=there, other=0.0)
        if RESET == 1:
            u = beta * u + (i - tl.where(u > threshold, threshold, 0.0))
        elif RESET == 2:
            u = tl.where(u > threshold, 0.0, beta) * u + i
        else:
            u = beta * u + i
        z = tl.where(u > threshold, 1.0, 0.0)
        place = s * units + n
        tl.store(membranes + place, u, mask=there)
        tl.store(train + place, z, mask=there)
        spikes += z
        total += u
        close += tl.where(there & (tl.abs(u - threshold) * k < 1), 1.0, 0.0)
    tl.store(rate + n, spikes / steps, mask=there)
    tl.store(mean + n, total / steps, mask=there)
    tl.store(near + pid, tl.sum(close, 0) / (steps * units))


def fire(
    current: Tensor,
    start: Tensor | None,
    slope: Tensor,
    steps: int,
    beta: float,
    threshold: float,
    reset: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Spikes and membranes of every step, their means, and the share near the threshold in parts.

    ``current`` is (S, ...), or (1, ...) where it is the same in every step. Without a ``start`` the
    membranes are at rest.
    """
    current = current.contiguous()
    units, shape = current[0].numel(), (steps, *current.shape[1:])
    train, membranes = (current.new_empty(shape) for _ in range(2))
    rate, mean = (current.new_empty(shape[1:]) for _ in range(2))
    near = current.new_empty(triton.cdiv(units, BLOCK))
    if units:
        _lif_forward_kernel[(len(near),)](
            current, current if start is None else start.contiguous(), slope,
            train, membranes, rate, mean, near,
            steps, units, units if current.shape[0] > 1 else 0, beta, threshold,
            START=start is not None, RESET=_RESETS[reset], BLOCK=BLOCK, num_warps=_WARPS,
        )  # fmt: skip
    return train, membranes, rate, mean, near


@triton.jit
def _surrogate(v, k, KIND: tl.constexpr):
    if KIND == 0:
        root = 1.0 + k * tl.abs(v)
        return 1.0 / (root * root)
    elif KIND == 1:
        x = k * v * (_PI / 2)
        return k / 2 / (1.0 + x * x)
    elif KIND == 2:
        return k * sigmoid(k * v) * sigmoid(-k * v)
    else:
        return k * tl.maximum(1.0 - tl.abs(v), 0.0)


@triton.jit
def _lif_backward_kernel(
    membranes, start, slope, of_train, of_membranes, of_rate, of_mean, of_current, of_start,
    steps, units, beta, threshold,
    TRAIN: tl.constexpr, MEMBRANES: tl.constexpr, RATE: tl.constexpr, MEAN: tl.constexpr,
    CONSTANT: tl.constexpr, START: tl.constexpr, RESET: tl.constexpr, KIND: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = n < units
    k = tl.load(slope)
    every_z = tl.zeros([BLOCK], tl.float32)
    every_u = tl.zeros([BLOCK], tl.float32)
    if RATE:
        every_z = tl.load(of_rate + n, mask=there, other=0.0) / steps
    if MEAN:
        every_u = tl.load(of_mean + n, mask=there, other=0.0) / steps
    later = tl.zeros([BLOCK], tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for back in range(steps):
        place = (steps - 1 - back) * units + n
        u = tl.load(membranes + place, mask=there, other=0.0)
        by_z, by_u = every_z, every_u
        if TRAIN:
            by_z += tl.load(of_train + place, mask=there, other=0.0)
        if MEMBRANES:
            by_u += tl.load(of_membranes + place, mask=there, other=0.0)
        kept = tl.where(u > threshold, 0.0, beta) if RESET == 2 else beta
        later = by_u + by_z * _surrogate(u - threshold, k, KIND) + kept * later
        if CONSTANT:
            total += later
        else:
            tl.store(of_current + place, later, mask=there)
    if CONSTANT:
        tl.store(of_current + n, total, mask=there)
    if START:
        kept = beta
        if RESET == 2:
            u = tl.load(start + n, mask=there, other=0.0)
            kept = tl.where(u > threshold, 0.0, beta)
        tl.store(of_start + n, kept * later, mask=there)


def fire_backward(
    membranes: Tensor,
    start: Tensor | None,
    slope: Tensor,
    of_train: Tensor | None,
    of_membranes: Tensor | None,
    of_rate: Tensor | None,
    of_mean: Tensor | None,
    constant: bool,
    beta: float,
    threshold: float,
    reset: str,
    surrogate: str,
) -> tuple[Tensor, Tensor]:
    """Gradients of the current, (1, ...) where it is constant, and of the start if there is one."""
    steps, units = membranes.shape[0], membranes[0].numel()
    of_current = torch.empty_like(membranes[:1] if constant else membranes)
    of_start = membranes.new_empty(0) if start is None else torch.empty_like(membranes[0])
    given = [
        None if one is None else one.contiguous()
        for one in (of_train, of_membranes, of_rate, of_mean)
    ]
    train, more, rate, mean = (membranes if one is None else one for one in given)
    if units:
        _lif_backward_kernel[(triton.cdiv(units, BLOCK),)](
            membranes, membranes if start is None else start.contiguous(), slope,
            train, more, rate, mean, of_current, of_start,
            steps, units, beta, threshold,
            TRAIN=given[0] is not None, MEMBRANES=given[1] is not None,
            RATE=given[2] is not None, MEAN=given[3] is not None, CONSTANT=constant,
            START=start is not None, RESET=_RESETS[reset], KIND=_SURROGATES[surrogate],
            BLOCK=BLOCK, num_warps=_WARPS,
        )  # fmt: skip
    return of_current, of_start
