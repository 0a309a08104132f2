"""The selective recurrence of Mamba in Triton: ``selective_loop`` and its gradient.

B batch, T tokens, D channels, N states per channel, K pieces of a sequence. The states of all
tokens, (B, T, D, N), never exist: they are in registers, and those at the beginnings of pieces are
kept for the backward pass, which computes the others of one piece at a time again.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .ops import PIECE

_CHANNELS, _WARPS = 32, 2  # of a program


@triton.jit
def _selective_forward_kernel(
    x, delta, b, c, a, start, y, end, kept, tokens, channels, states, pieces,
    PIECE: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    d = tl.program_id(0) * BD + tl.arange(0, BD)
    n = tl.arange(0, BN)
    wide, deep = d < channels, n < states
    inside = wide[:, None] & deep[None, :]
    last_d, last_n = tl.where(wide, tokens, 0), tl.where(deep, tokens, 0)
    place = d[:, None] * states + n[None, :]
    size = channels * states
    rate = tl.load(a + place, mask=inside, other=0.0)
    h = tl.load(start + row * size + place, mask=inside, other=0.0)
    for piece in range(pieces):
        tl.store(kept + (row * pieces + piece) * size + place, h, mask=inside)
        for inner in range(PIECE):
            t = piece * PIECE + inner
            # Behind the end delta is 0, which leaves the state as it is.
            now_d, now_n = t < last_d, t < last_n
            at = row * tokens + t
            step = tl.load(delta + at * channels + d, mask=now_d, other=0.0)
            given = tl.load(x + at * channels + d, mask=now_d, other=0.0)
            into = tl.load(b + at * states + n, mask=now_n, other=0.0)
            out = tl.load(c + at * states + n, mask=now_n, other=0.0)
            h = tl.exp(step[:, None] * rate) * h + (step * given)[:, None] * into[None, :]
            tl.store(y + at * channels + d, tl.sum(h * out[None, :], 1), mask=now_d)
    tl.store(end + row * size + place, h, mask=inside)


def selective(
    x_BTD: Tensor, delta_BTD: Tensor, b_BTN: Tensor, c_BTN: Tensor, a_DN: Tensor, h_BDN: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, the last state, and the states at the beginnings of pieces (B, K, D, N)."""
    (batch, tokens, channels), states = x_BTD.shape, a_DN.shape[1]
    pieces = triton.cdiv(tokens, PIECE)
    y_BTD = x_BTD.new_empty(batch, tokens, channels)
    end_BDN, kept_BKDN = (
        x_BTD.new_empty(shape)
        for shape in ((batch, channels, states), (batch, pieces, channels, states))
    )
    _selective_forward_kernel[(triton.cdiv(channels, _CHANNELS), batch)](
        x_BTD.contiguous(), delta_BTD.contiguous(), b_BTN.contiguous(), c_BTN.contiguous(),
        a_DN.contiguous(), h_BDN.contiguous(), y_BTD, end_BDN, kept_BKDN,
        tokens, channels, states, pieces, PIECE=PIECE,
        BD=_CHANNELS, BN=triton.next_power_of_2(states), num_warps=_WARPS,
    )  # fmt: skip
    return y_BTD, end_BDN, kept_BKDN


@triton.jit
def _selective_backward_kernel(
    x, delta, b, c, a, kept, of_y, of_end, again,
    of_x, of_delta, of_b, of_c, of_a, of_start, tokens, channels, states, pieces,
    PIECE: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    part, parts = tl.program_id(0), tl.num_programs(0)
    d = part * BD + tl.arange(0, BD)
    n = tl.arange(0, BN)
    wide, deep = d < channels, n < states
    inside = wide[:, None] & deep[None, :]
    last_d, last_n = tl.where(wide, tokens, 0), tl.where(deep, tokens, 0)
    place = d[:, None] * states + n[None, :]
    size = channels * states
    rate = tl.load(a + place, mask=inside, other=0.0)
    back = tl.load(of_end + row * size + place, mask=inside, other=0.0)
    by_rate = tl.zeros([BD, BN], tl.float32)
    scratch = again + row * PIECE * size + place  # the state before every token of a piece
    for before in range(pieces):
        piece = pieces - 1 - before
        h = tl.load(kept + (row * pieces + piece) * size + place, mask=inside, other=0.0)
        for inner in range(PIECE):
            t = piece * PIECE + inner
            now_d, now_n = t < last_d, t < last_n
            at = row * tokens + t
            tl.store(scratch + inner * size, h, mask=inside)
            step = tl.load(delta + at * channels + d, mask=now_d, other=0.0)
            given = tl.load(x + at * channels + d, mask=now_d, other=0.0)
            into = tl.load(b + at * states + n, mask=now_n, other=0.0)
            h = tl.exp(step[:, None] * rate) * h + (step * given)[:, None] * into[None, :]
        tl.debug_barrier()  # what one thread wrote another may read
        for after in range(PIECE):
            inner = PIECE - 1 - after
            t = piece * PIECE + inner
            now_d, now_n = t < last_d, t < last_n
            at = row * tokens + t
            step = tl.load(delta + at * channels + d, mask=now_d, other=0.0)
            given = tl.load(x + at * channels + d, mask=now_d, other=0.0)
            into = tl.load(b + at * states + n, mask=now_n, other=0.0)
            out = tl.load(c + at * states + n, mask=now_n, other=0.0)
            grad = tl.load(of_y + at * channels + d, mask=now_d, other=0.0)
            h = tl.load(scratch + inner * size, mask=inside, other=0.0)
            decay = tl.exp(step[:, None] * rate)
            drive = step * given
            state = decay * h + drive[:, None] * into[None, :]
            back += grad[:, None] * out[None, :]
            of_exponent = back * h * decay
            of_drive = tl.sum(back * into[None, :], 1)
            by_rate += of_exponent * step[:, None]
            tl.store(of_x + at * channels + d, of_drive * step, mask=now_d)
            of_step = tl.sum(of_exponent * rate, 1) + of_drive * given
            tl.store(of_delta + at * channels + d, of_step, mask=now_d)
            own = ((row * parts + part) * tokens + t) * states + n
            tl.store(of_b + own, tl.sum(back * drive[:, None], 0), mask=now_n)
            tl.store(of_c + own, tl.sum(grad[:, None] * state, 0), mask=now_n)
            back = back * decay
        tl.debug_barrier()  # before the next piece writes over it
    tl.store(of_a + row * size + place, by_rate, mask=inside)
    tl.store(of_start + row * size + place, back, mask=inside)


def selective_backward(
    x_BTD: Tensor,
    delta_BTD: Tensor,
    b_BTN: Tensor,
    c_BTN: Tensor,
    a_DN: Tensor,
    kept_BKDN: Tensor,
    of_y_BTD: Tensor,
    of_end_BDN: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the six inputs of ``selective``; what programs share is summed after them."""
    (batch, tokens, channels), states = x_BTD.shape, a_DN.shape[1]
    parts, pieces = triton.cdiv(channels, _CHANNELS), kept_BKDN.shape[1]
    of_x, of_delta = (x_BTD.new_empty(batch, tokens, channels) for _ in range(2))
    of_b, of_c = (x_BTD.new_empty(batch, parts, tokens, states) for _ in range(2))
    of_a, of_start = (x_BTD.new_empty(batch, channels, states) for _ in range(2))
    again = x_BTD.new_empty(batch, PIECE, channels, states)
    _selective_backward_kernel[(parts, batch)](
        x_BTD.contiguous(), delta_BTD.contiguous(), b_BTN.contiguous(), c_BTN.contiguous(),
        a_DN.contiguous(), kept_BKDN, of_y_BTD.contiguous(), of_end_BDN.contiguous(), again,
        of_x, of_delta, of_b, of_c, of_a, of_start, tokens, channels, states, pieces,
        PIECE=PIECE, BD=_CHANNELS, BN=triton.next_power_of_2(states), num_warps=_WARPS,
    )  # fmt: skip
    return of_x, of_delta, of_b.sum(1), of_c.sum(1), of_a.sum(0), of_start
