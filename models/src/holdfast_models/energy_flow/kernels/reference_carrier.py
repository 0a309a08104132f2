"""Plain torch forms of the kernels of gates and heads.

N flows, C carrier width, G = 4C gates, A width of the heads, P slots (only the first is used
here), E numbers of the weights of the heads' ends.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..model.carrier import MOST_ENERGY, MOST_MOVE
from .plan import Plan
from .reference_neuron import gelu_slope

__all__ = ["gates_backward", "gates_forward", "heads_backward", "heads_forward"]


def gates_forward(
    gates_NG: Tensor,
    before_NC: Tensor | None,
    bias_G: Tensor,
    after_NC: Tensor,
    alive_N: Tensor,
    stop: Tensor,
    most_P: Tensor,
    plan: Plan,
) -> None:
    """The next state of a layer.

    Args:
        gates_NG: products of the four gates, ``[N, 4C]``, without bias.
        before_NC: the state; None in the first step, where it is zero (n_h is not read then).
        bias_G: of the gates, fp32.
        after_NC: gets the next state.
        alive_N: uint8; only for ``most_P``.
        stop: one int32.
        most_P: gets the largest absolute state of flows that move.
        plan: how the kernel is cut.
    """
    new, _, update, _, _ = _gates(gates_NG, before_NC, bias_G)
    h = new - update * new
    if before_NC is not None:
        h = new + update * (before_NC.float() - new)
    after_NC.copy_(h)
    active_N = (alive_N != 0) & (stop == 0)
    most_P[0] = h.abs().amax(1).where(active_N, 0.0).amax()


def gates_backward(
    gates_NG: Tensor,
    before_NC: Tensor | None,
    bias_G: Tensor,
    dh_NC: Tensor,
    partial_PG: Tensor,
    plan: Plan,
) -> None:
    """Gradients of the four products, in their place.

    Args:
        gates_NG: the products; replaced by their gradients (not n_h in the first step).
        before_NC: as in the forward pass.
        bias_G: of the gates.
        dh_NC: gradient of the next state; replaced by what of it reaches the state before
            directly (not in the first step).
        partial_PG: the biases' gradient is added to its slots.
        plan: how the kernel is cut.
    """
    new, reset, update, state_n, _ = _gates(gates_NG, before_NC, bias_G)
    dh = dh_NC.float()
    before = 0.0 if before_NC is None else before_NC.float()
    d_n = dh * (1 - update) * (1 - new * new)
    d_z = dh * (before - new) * update * (1 - update)
    d_r = d_n * state_n * reset * (1 - reset)
    d_h = d_n * reset
    found = torch.cat((d_n, d_r, d_z, d_h), dim=1)
    partial_PG[0] += found.sum(0)
    if before_NC is None:
        wide = d_n.shape[1]
        gates_NG[:, : 3 * wide] = found[:, : 3 * wide].to(gates_NG.dtype)
        return
    gates_NG.copy_(found)
    dh_NC.copy_(dh * update)


def heads_forward(
    heads_NA: Tensor,
    ends: Tensor,
    q_4N: Tensor,
    alive_N: Tensor,
    stop: Tensor,
    noise_3N: Tensor | None,
    scale: Tensor,
    q_after_4N: Tensor,
    alive_after_N: Tensor,
    slopes_8N: Tensor,
    k_N: Tensor,
    exit_N: Tensor,
    left_P: Tensor,
    plan: Plan,
) -> None:
    """Ends of the heads, new energies, movement, exits and counters.

    Args:
        heads_NA: products of the merged heads, without bias.
        ends: see ``weights.Weights``.
        q_4N: positions and energies before the step.
        alive_N: uint8.
        stop: one int32.
        noise_3N: in normalised units; None: none.
        scale: of displacements, one number.
        q_after_4N: gets those after it.
        alive_after_N: gets who is still under way.
        slopes_8N: gets what the backward pass needs: the slopes of x, y, z and energy after the
            step by those before it, and by the heads' ends.
        k_N: steps taken, int32; counted on.
        exit_N: face, int32; set for those that leave.
        left_P: gets how many left, int32.
        plan: sizes and behaviour.
    """
    p_3N, e_N = q_4N[:3], q_4N[3]
    bias_A, w_e, w_m, b_e, b_m = _ends(ends, plan.split)
    near_e, near_m = functional.gelu(heads_NA.float() + bias_A).split(plan.split, 1)
    change_N, d_N3 = near_e @ w_e + b_e, near_m @ w_m.t() + b_m
    active_N = (alive_N != 0) & (stop == 0)
    on_N = active_N.float()
    if plan.energy == "tanh":
        new_e = torch.tanh(change_N)
        by_change, by_e = 1 - new_e * new_e, torch.zeros_like(new_e)
    else:
        raw = e_N + change_N
        new_e = raw.clamp(-MOST_ENERGY, MOST_ENERGY)
        by_change = by_e = (raw.abs() <= MOST_ENERGY).float()
    wanted = scale * d_N3.t()
    if plan.bound == "clamp":
        delta = wanted.clamp(-MOST_MOVE, MOST_MOVE)
        by_d = (wanted.abs() <= MOST_MOVE).float() * scale
    else:
        turned = torch.tanh(wanted / MOST_MOVE)
        delta, by_d = MOST_MOVE * turned, (1 - turned * turned) * scale
    outward = torch.where(delta[2] >= 0, plan.drift, -plan.drift)
    q = p_3N + torch.stack((delta[0], delta[1], delta[2] + outward))
    if noise_3N is not None:
        q = q + noise_3N
    face_N = (q[2] <= -1) * 1 + (q[2] >= 1) * 2
    by_q = torch.ones_like(q)
    side = q[:2]
    if plan.reflect:
        over = side.abs() > 1
        by_q[:2] = torch.where(over, -1.0, 1.0)
        side = torch.where(side < -1, -2 - side, torch.where(side > 1, 2 - side, side))
    q = torch.cat((side, q[2:]))
    by_q = by_q * (q.abs() <= 1)
    q = q.clamp(-1, 1)
    face_N = torch.where(active_N, face_N, 0)
    left_N = face_N > 0
    q_after_4N[:3] = torch.where(active_N, q, p_3N)
    q_after_4N[3] = torch.where(active_N, new_e, e_N)
    alive_after_N.copy_(alive_N * ~left_N)
    slopes_8N[:3] = torch.where(active_N, by_q, 1.0)
    slopes_8N[3] = torch.where(active_N, by_e, 1.0)
    slopes_8N[4:7] = by_q * by_d * on_N
    slopes_8N[7] = by_change * on_N
    k_N += active_N
    exit_N.copy_(torch.where(left_N, face_N, exit_N))
    left_P[0] = left_N.sum()


def heads_backward(
    heads_NA: Tensor,
    ends: Tensor,
    slopes_8N: Tensor,
    d_4N: Tensor,
    partial_PE: Tensor,
    plan: Plan,
) -> None:
    """Gradients of the heads' products, in their place.

    Args:
        heads_NA: the products; replaced by their gradients.
        ends: weights.
        slopes_8N: from the forward pass.
        d_4N: gradient of the positions and energies after the step.
        partial_PE: the gradient of ``ends`` is added to its slots.
        plan: sizes.
    """
    bias_A, w_e, w_m, _, _ = _ends(ends, plan.split)
    raw = heads_NA.float() + bias_A
    near_e, near_m = functional.gelu(raw).split(plan.split, 1)
    dends_4N = d_4N * slopes_8N[4:]
    dchange_N, dd_3N = dends_4N[3], dends_4N[:3]
    dnear = torch.cat((dchange_N[:, None] * w_e, dd_3N.t() @ w_m), dim=1)
    dheads = dnear * gelu_slope(raw)
    heads_NA.copy_(dheads)
    found = [dheads.sum(0), dchange_N @ near_e, dd_3N @ near_m]
    found += [dchange_N.sum(), dd_3N.sum(1)]
    partial_PE[0] += torch.cat([one.reshape(-1) for one in found])


def _ends(ends: Tensor, split: tuple[int, int]) -> list[Tensor]:
    one = list(ends.split([sum(split), split[0], 3 * split[1], 1, 3]))
    one[2] = one[2].view(3, split[1])
    return one


def _gates(gates_NG: Tensor, before_NC: Tensor | None, bias_G: Tensor) -> tuple[Tensor, ...]:
    g_n, g_r, g_z, g_h = gates_NG.float().chunk(4, 1)
    b_n, b_r, b_z, b_h = bias_G.chunk(4)
    reset, update = torch.sigmoid(g_r + b_r), torch.sigmoid(g_z + b_z)
    state_n = b_h.expand_as(g_n) if before_NC is None else g_h + b_h
    new = torch.tanh(g_n + b_n + reset * state_n)
    return new, reset, update, state_n, gates_NG
