"""The closed-form cell over all tokens in Triton: ``CfC._loop`` and the loop of ``ThroughTime``.

B batch, T tokens, U units, M width of the hidden layer. One program has one row of the batch and
keeps its state in registers; the weights come out of the cache of the device token after token, or
stay in registers where they are small.
"""

# What a constant of the compiler decides looks like a name that may be missing.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportPossiblyUnboundVariable=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...device_math import sigmoid, tanh

_KEPT = 40_960  # weights of all gates that fit into the registers of a program
_OUTER, _INNER = tl.constexpr(1.7159), tl.constexpr(0.666)  # LeCun's tanh


@triton.jit
def _tile(weights, row, column, rows, columns, stride):
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    return tl.load(weights + row[:, None] * stride + column[None, :], mask=inside, other=0.0)


@triton.jit
def _times(weights, vector):
    # Along the rows, which a warp has whole: between warps nothing is exchanged but the result.
    return tl.sum(weights * vector[None, :], 1)


@triton.jit
def _cfc_forward_kernel(
    z, by_state, later, bias, start, time, states, scratch, tokens, units, hidden, dt, row_of_state,
    time_b, time_t, time_u,
    LAYER: tl.constexpr, TIME: tl.constexpr, KEEP: tl.constexpr,
    BU: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    u = tl.arange(0, BU)
    m = tl.arange(0, BM)
    there = u < units
    wide = 4 * units
    h = tl.load(start + row * units + u, mask=there, other=0.0)
    own = scratch + row * 4 * BU
    # Weights (to, from): the gates read the hidden layer, or the state itself.
    gates = later if LAYER else by_state
    read = hidden if LAYER else units
    stride = hidden if LAYER else row_of_state
    if LAYER:
        bias_f = tl.load(bias + u, mask=there, other=0.0)
        bias_g = tl.load(bias + units + u, mask=there, other=0.0)
        bias_a = tl.load(bias + 2 * units + u, mask=there, other=0.0)
        bias_c = tl.load(bias + 3 * units + u, mask=there, other=0.0)
    if KEEP:
        w_f = _tile(gates, u, m, units, read, stride)
        w_g = _tile(gates + units * stride, u, m, units, read, stride)
        w_a = _tile(gates + 2 * units * stride, u, m, units, read, stride)
        w_c = _tile(gates + 3 * units * stride, u, m, units, read, stride)
        if LAYER:
            w_h = _tile(by_state, m, u, hidden, units, row_of_state)
    for t in range(tokens):
        at = row * tokens + t
        if LAYER:
            if not KEEP:
                w_h = _tile(by_state, m, u, hidden, units, row_of_state)
            sums = tl.load(z + at * hidden + m, mask=m < hidden, other=0.0) + _times(w_h, h)
            y = tanh(sums * _INNER) * _OUTER
            f, g, a, c = bias_f, bias_g, bias_a, bias_c
        else:
            y = h
            f = tl.load(z + at * wide + u, mask=there, other=0.0)
            g = tl.load(z + at * wide + units + u, mask=there, other=0.0)
            a = tl.load(z + at * wide + 2 * units + u, mask=there, other=0.0)
            c = tl.load(z + at * wide + 3 * units + u, mask=there, other=0.0)
        if KEEP:
            f += _times(w_f, y)
            g += _times(w_g, y)
            a += _times(w_a, y)
            c += _times(w_c, y)
        else:
            # A loop of the device: the weights of one gate are in registers at a time.
            tl.debug_barrier()
            for gate in range(4):
                of_gate = _times(_tile(gates + gate * units * stride, u, m, units, read, stride), y)
                tl.store(own + gate * BU + u, of_gate)
            tl.debug_barrier()
            f += tl.load(own + u)
            g += tl.load(own + BU + u)
            a += tl.load(own + 2 * BU + u)
            c += tl.load(own + 3 * BU + u)
        if TIME:
            at_time = time + row * time_b + t * time_t + u * time_u
            a *= tl.load(at_time, mask=there, other=0.0)
        else:
            a *= dt
        f, g = tanh(f), tanh(g)
        h = f + sigmoid(a + c) * (g - f)
        tl.store(states + at * units + u, h, mask=there)


def cfc(
    z_BTM: Tensor,
    by_state_MU: Tensor,
    later: Tensor | None,
    bias: Tensor | None,
    start_BU: Tensor,
    time_BTU: Tensor | None,
    dt: float,
) -> Tensor:
    """States (B, T, U) of a cell with one hidden layer or none (then M is 4 U).

    ``z_BTM`` are the sums of the first layer without the state, ``time_BTU`` elapsed times, which
    may be broadcast, or None where all are ``dt``.
    """
    batch, tokens, _ = z_BTM.shape
    units, hidden = start_BU.shape[1], 0 if later is None else later.shape[1]
    states_BTU = z_BTM.new_empty(batch, tokens, units)
    # A part of the columns of a larger weight, as a rule: it is read where it is.
    by_state = by_state_MU if by_state_MU.stride(1) == 1 else by_state_MU.contiguous()
    blocks = _blocks(units, hidden)
    if batch and tokens:
        _cfc_forward_kernel[(batch,)](
            z_BTM.contiguous(), by_state, by_state if later is None else later.contiguous(),
            by_state if bias is None else bias, start_BU.contiguous(),
            states_BTU if time_BTU is None else time_BTU, states_BTU,
            states_BTU.new_empty(batch, 4, blocks["BU"]), tokens, units, hidden, dt,
            by_state.stride(0), *((0, 0, 0) if time_BTU is None else time_BTU.stride()),
            LAYER=later is not None, TIME=time_BTU is not None, **blocks,
        )  # fmt: skip
    return states_BTU


@triton.jit
def _cfc_backward_kernel(
    grads, slopes, by_state, later, inner, totals, of_start, tokens, units, hidden,
    LAYER: tl.constexpr, KEEP: tl.constexpr, BU: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    u = tl.arange(0, BU)
    m = tl.arange(0, BM)
    there = u < units
    wide = 4 * units
    # Weights (from, to): a gradient goes from the gates to what they read.
    gates = later if LAYER else by_state
    read = hidden if LAYER else units
    if KEEP:
        w_f = _tile(gates, m, u, read, units, wide)
        w_g = _tile(gates + units, m, u, read, units, wide)
        w_a = _tile(gates + 2 * units, m, u, read, units, wide)
        w_c = _tile(gates + 3 * units, m, u, read, units, wide)
        if LAYER:
            w_h = _tile(by_state, u, m, units, hidden, hidden)
    back = tl.zeros([BU], tl.float32)
    for after in range(tokens):
        at = row * tokens + tokens - 1 - after
        back += tl.load(grads + at * units + u, mask=there, other=0.0)
        tl.store(totals + at * units + u, back, mask=there)
        slope = slopes + at * wide + u
        if KEEP:
            y = _times(w_f, back * tl.load(slope, mask=there, other=0.0))
            y += _times(w_g, back * tl.load(slope + units, mask=there, other=0.0))
            y += _times(w_a, back * tl.load(slope + 2 * units, mask=there, other=0.0))
            y += _times(w_c, back * tl.load(slope + 3 * units, mask=there, other=0.0))
        else:
            y = tl.zeros([BM], tl.float32)
            for gate in range(4):
                by_gate = back * tl.load(slope + gate * units, mask=there, other=0.0)
                y += _times(_tile(gates + gate * units, m, u, read, units, wide), by_gate)
        if LAYER:
            y *= tl.load(inner + at * hidden + m, mask=m < hidden, other=0.0)
            if not KEEP:
                w_h = _tile(by_state, u, m, units, hidden, hidden)
            back = _times(w_h, y)
        else:
            back = y
    tl.store(of_start + row * units + u, back, mask=there)


def cfc_backward(
    grads_BTU: Tensor,
    slopes_BTGU: Tensor,
    by_state_MU: Tensor,
    later: Tensor | None,
    inner_BTM: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Of every state its gradient with what all later ones hand back, and that of the start."""
    batch, tokens, units = grads_BTU.shape
    hidden = 0 if later is None else later.shape[1]
    totals_BTU = torch.empty_like(grads_BTU, memory_format=torch.contiguous_format)
    of_start_BU = grads_BTU.new_zeros(batch, units)
    by_state = by_state_MU.T.contiguous()
    if batch and tokens:
        _cfc_backward_kernel[(batch,)](
            grads_BTU.contiguous(), slopes_BTGU.contiguous(), by_state,
            by_state if later is None else later.T.contiguous(),
            totals_BTU if inner_BTM is None else inner_BTM.contiguous(),
            totals_BTU, of_start_BU, tokens, units, hidden,
            LAYER=later is not None, **_blocks(units, hidden),
        )  # fmt: skip
    return totals_BTU, of_start_BU


def _blocks(units: int, hidden: int) -> dict[str, int | bool]:
    wide = triton.next_power_of_2(units)
    read = triton.next_power_of_2(hidden) if hidden else wide
    keep = wide * read * (5 if hidden else 4) <= _KEPT
    warps = min(16, max(4, wide * read // 512))
    return {"BU": wide, "BM": read, "KEEP": keep, "num_warps": warps}
