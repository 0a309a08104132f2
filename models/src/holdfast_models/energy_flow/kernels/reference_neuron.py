"""Plain torch forms of the kernels of noise and neuron.

They run on any device and say what the kernels must compute. Like the kernels they write into the
tensors they are given. N flows, T lattice steps, H neuron's hidden width, o its output, U columns
of layer 0's input, R columns of a row of states, P slots (only the first is used here), F numbers
of the neuron's weights.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from .plan import Plan

__all__ = ["neuron_backward", "neuron_forward", "noise"]

_EPS = 1e-5


def noise(stream_T: Tensor, sigma_3: Tensor, first: int, flows: int) -> Tensor:
    """Exploration noise of all steps, ``[T, 3, N]`` in fp32; see ``energy_flow.noise``."""
    golden, low = -7046029254386353131, 0xFFFFFFFF
    index_N = torch.arange(first, first + flows, device=stream_T.device)
    pair_2N = torch.stack((2 * index_N, 2 * index_N + 1))
    word = _mix(pair_2N * golden + stream_T[:, None, None])
    share = (((word >> 32) & low).double() + 0.5) / 2**32
    angle = (word & low).double() * (2 * math.pi / 2**32)
    radius = (-2 * share.log()).sqrt()
    one, two = radius * angle.cos(), radius * angle.sin()
    return torch.stack((one[:, 0], two[:, 0], one[:, 1]), dim=1).float() * sigma_3[:, None]


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
    plan: Plan,
) -> None:
    """The neuron's last hidden layer and the energy, into the first U columns of a row.

    Args:
        q_4N: positions and energies.
        alive_N: uint8.
        stop: one int32; not 0: nothing moves in this step.
        flat: the neuron's weights, see ``weights.Weights``.
        answer_w: its last layer, only to measure what the GRU is given.
        answer_b: of the last layer.
        out_NR: rows of the state buffer.
        most_P: gets the largest absolute input of the GRU.
        guarded_P: gets how many inputs were not finite or out of range.
        plan: sizes.
    """
    active_N = (alive_N != 0) & (stop == 0)
    e_N = q_4N[3]
    *_, g_NH = _neuron(q_4N, flat, plan.neuron)
    u_No = functional.linear(g_NH, answer_w, answer_b)
    seen = torch.cat((u_No, e_N[:, None]), dim=1).where(active_N[:, None], 0.0).abs()
    most_P[0] = seen.amax()
    guarded_P[0] = torch.logical_not(seen <= plan.clip).sum()
    v = _guard(torch.cat((g_NH, e_N[:, None]), dim=1).where(active_N[:, None], 0.0), plan.clip)
    out_NR[:, : plan.neuron + 1] = v.to(out_NR.dtype)
    out_NR[:, plan.neuron + 1 : plan.inputs] = 0


def neuron_backward(
    q_4N: Tensor,
    alive_N: Tensor,
    stop: Tensor,
    flat: Tensor,
    du_NU: Tensor,
    slopes_8N: Tensor,
    d_4N: Tensor,
    partial_PF: Tensor,
    plan: Plan,
) -> None:
    """Gradients of positions and energies before a step, and of the neuron's weights.

    Args:
        q_4N: positions and energies before the step, as in the forward pass.
        alive_N: uint8.
        stop: one int32.
        flat: the neuron's weights.
        du_NU: gradient of what ``neuron_forward`` wrote.
        slopes_8N: from ``heads_forward``; the first four lead past the neuron.
        d_4N: gradient of the positions and energies after the step; replaced by that before it.
        partial_PF: gradient of ``flat`` is added to its slots.
        plan: sizes.
    """
    wide = plan.neuron
    w1_4H, _, gain1, _, w2_HH, _, gain2, _ = _unpack(flat, wide)
    active_N1 = ((alive_N != 0) & (stop == 0))[:, None]
    hat1, rstd1, y1, g1, hat2, rstd2, y2, g2 = _neuron(q_4N, flat, wide)
    passes = active_N1 & (g2.abs() <= plan.clip)
    dg2 = du_NU[:, :wide].float().where(passes, 0.0)
    seen_N = active_N1[:, 0] & (q_4N[3].abs() <= plan.clip)
    d_4N *= slopes_8N[:4]
    d_4N[3] += du_NU[:, wide].float().where(seen_N, 0.0)
    dy2 = dg2 * gelu_slope(y2)
    dx2 = _norm_backward(dy2 * gain2, hat2, rstd2)
    dg1 = dx2 @ w2_HH
    dy1 = dg1 * gelu_slope(y1)
    dx1 = _norm_backward(dy1 * gain1, hat1, rstd1)
    d_4N += w1_4H @ dx1.t()
    found = [q_4N @ dx1, dx1.sum(0), (dy1 * hat1).sum(0), dy1.sum(0)]
    found += [dx2.t() @ g1, dx2.sum(0), (dy2 * hat2).sum(0), dy2.sum(0)]
    partial_PF[0] += torch.cat([one.reshape(-1) for one in found])


def gelu_slope(x: Tensor) -> Tensor:
    """The derivative of the exact GELU."""
    bell = torch.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return 0.5 * (1 + torch.erf(x * math.sqrt(0.5))) + x * bell


def _mix(word: Tensor) -> Tensor:
    word = (word ^ ((word >> 30) & ((1 << 34) - 1))) * -4658895280553007687
    word = (word ^ ((word >> 27) & ((1 << 37) - 1))) * -7723592293110705685
    return word ^ ((word >> 31) & ((1 << 33) - 1))


def _unpack(flat: Tensor, wide: int) -> list[Tensor]:
    sizes = [4 * wide, wide, wide, wide, wide * wide, wide, wide, wide]
    one = list(flat.split(sizes))
    one[0], one[4] = one[0].view(4, wide), one[4].view(wide, wide)
    return one


def _neuron(q_4N: Tensor, flat: Tensor, wide: int) -> tuple[Tensor, ...]:
    w1_4H, b1, gain1, shift1, w2_HH, b2, gain2, shift2 = _unpack(flat, wide)
    x1 = q_4N.t() @ w1_4H + b1
    hat1, rstd1 = _norm(x1)
    y1 = hat1 * gain1 + shift1
    g1 = functional.gelu(y1)
    hat2, rstd2 = _norm(functional.linear(g1, w2_HH, b2))
    y2 = hat2 * gain2 + shift2
    return hat1, rstd1, y1, g1, hat2, rstd2, y2, functional.gelu(y2)


def _norm(x: Tensor) -> tuple[Tensor, Tensor]:
    apart = x - x.mean(1, keepdim=True)
    rstd = (apart.square().mean(1, keepdim=True) + _EPS).rsqrt()
    return apart * rstd, rstd


def _norm_backward(dhat: Tensor, hat: Tensor, rstd: Tensor) -> Tensor:
    along = (dhat * hat).mean(1, keepdim=True)
    return rstd * (dhat - dhat.mean(1, keepdim=True) - hat * along)


def _guard(v: Tensor, clip: float) -> Tensor:
    return v.nan_to_num(nan=0.0, posinf=clip, neginf=-clip).clamp(-clip, clip)
