"""Plain torch forms of the kernels, built on the formulas of ``model``.

They run on any device and say what the kernels must compute; like the kernels they write into the
tensors they are given. Where a kernel has its derivative written out, autograd finds it here.

N flows, T lattice steps, C carrier width, G = 4C gates, A width of the heads, H neuron's hidden
width, o its output, U columns of layer 0's input, R columns of a row of states, P slots (only the
first is used here), F numbers of the neuron's weights, E of the weights of the heads' ends.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..model.carrier import bounded_input, bounded_move, new_energy
from ..model.movement import move
from ..model.noise import normals_N3
from ..model.stepping import with_drift
from .plan import KernelPlan

__all__ = [
    "gates_backward",
    "gates_forward",
    "heads_backward",
    "heads_forward",
    "neuron_backward",
    "neuron_forward",
    "noise",
]


def noise(stream_T: Tensor, sigma_3: Tensor, first: int, flows: int) -> Tensor:
    """Exploration noise of all steps, ``[T, 3, N]`` in fp32; see ``model.noise``."""
    index_N = torch.arange(first, first + flows, device=stream_T.device)
    each = [normals_N3(stream, index_N).t() for stream in stream_T.unbind()]
    return torch.stack(each) * sigma_3[:, None]


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
    plan: KernelPlan,
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
    active_N1 = ((alive_N != 0) & (stop == 0))[:, None]
    g_NH = _neuron(q_4N, flat, plan.neuron)
    u_No = functional.linear(g_NH, answer_w, answer_b)
    seen = torch.cat((u_No, q_4N[3][:, None]), dim=1).where(active_N1, 0.0).abs()
    most_P[0] = seen.amax()
    guarded_P[0] = torch.logical_not(seen <= plan.clip).sum()
    read = _read(q_4N, active_N1, flat, plan)
    out_NR[:, : plan.neuron + 1] = read.to(out_NR.dtype)
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
    plan: KernelPlan,
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
    active_N1 = ((alive_N != 0) & (stop == 0))[:, None]
    with torch.enable_grad():
        leaves = _leaf(q_4N), _leaf(flat)
        read = _read(leaves[0], active_N1, leaves[1], plan)
    given = du_NU[:, : plan.neuron + 1].float()
    dq_4N, dflat = torch.autograd.grad(read, leaves, given)
    d_4N.mul_(slopes_8N[:4]).add_(dq_4N)
    partial_PF[0] += dflat


def gates_forward(
    gates_NG: Tensor,
    before_NC: Tensor | None,
    bias_G: Tensor,
    after_NC: Tensor,
    alive_N: Tensor,
    stop: Tensor,
    most_P: Tensor,
    plan: KernelPlan,
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
    h_NC = _state(gates_NG.float(), None if before_NC is None else before_NC.float(), bias_G)
    after_NC.copy_(h_NC)
    active_N = (alive_N != 0) & (stop == 0)
    most_P[0] = h_NC.abs().amax(1).where(active_N, 0.0).amax()


def gates_backward(
    gates_NG: Tensor,
    before_NC: Tensor | None,
    bias_G: Tensor,
    dh_NC: Tensor,
    partial_PG: Tensor,
    plan: KernelPlan,
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
    leaves = [_leaf(gates_NG), _leaf(bias_G)]
    if before_NC is not None:
        leaves.append(_leaf(before_NC))
    with torch.enable_grad():
        h_NC = _state(leaves[0], None if before_NC is None else leaves[2], leaves[1])
    dgates_NG, dbias_G, *dbefore = torch.autograd.grad(h_NC, leaves, dh_NC.float())
    partial_PG[0] += dbias_G
    read = gates_NG.shape[1] if dbefore else 3 * dh_NC.shape[1]
    gates_NG[:, :read] = dgates_NG[:, :read].to(gates_NG.dtype)
    if dbefore:
        dh_NC.copy_(dbefore[0])


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
    plan: KernelPlan,
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
    active_N = (alive_N != 0) & (stop == 0)
    with torch.enable_grad():
        before_4N, ends_4N = _leaf(q_4N), _leaf(_ends(heads_NA.float(), ends, plan))
        e_N = before_4N[3]
        energy_N = new_energy(e_N, ends_4N[3], plan.energy).where(active_N, e_N)
        delta_N3 = with_drift(bounded_move(scale * ends_4N[:3], plan.bound).t(), plan.drift)
        moved = move(
            before_4N[:3].t(),
            delta_N3,
            None if noise_3N is None else noise_3N.t(),
            reflect=plan.reflect,
            alive_N=active_N,
        )
        after_4N = torch.cat((moved.p_N3.t(), energy_N[None]))
    # Each number after the step depends on one before it and on one end: all slopes at once.
    ones_4N = torch.ones_like(after_4N)
    slopes = torch.autograd.grad(after_4N, (before_4N, ends_4N), ones_4N)
    slopes_8N.copy_(torch.cat(slopes))
    q_after_4N.copy_(after_4N.detach())
    left_N = moved.exit_N > 0
    alive_after_N.copy_(alive_N * ~left_N)
    k_N += active_N
    exit_N.copy_(torch.where(left_N, moved.exit_N, exit_N))
    left_P[0] = left_N.sum()


def heads_backward(
    heads_NA: Tensor,
    ends: Tensor,
    slopes_8N: Tensor,
    d_4N: Tensor,
    partial_PE: Tensor,
    plan: KernelPlan,
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
    leaves = _leaf(heads_NA), _leaf(ends)
    with torch.enable_grad():
        ends_4N = _ends(*leaves, plan)
    dheads_NA, dends = torch.autograd.grad(ends_4N, leaves, d_4N * slopes_8N[4:])
    heads_NA.copy_(dheads_NA)
    partial_PE[0] += dends


def _leaf(given: Tensor) -> Tensor:
    return given.detach().float().requires_grad_()


def _neuron(q_4N: Tensor, flat: Tensor, wide: int) -> Tensor:
    """The last hidden layer, ``[N, H]``."""
    sizes = [4 * wide, wide, wide, wide, wide * wide, wide, wide, wide]
    w1, b1, gain1, shift1, w2, b2, gain2, shift2 = flat.split(sizes)
    first = q_4N.t() @ w1.view(4, wide) + b1
    g_NH = functional.gelu(functional.layer_norm(first, (wide,), gain1, shift1))
    second = functional.linear(g_NH, w2.view(wide, wide), b2)
    return functional.gelu(functional.layer_norm(second, (wide,), gain2, shift2))


def _read(q_4N: Tensor, active_N1: Tensor, flat: Tensor, plan: KernelPlan) -> Tensor:
    """What layer 0 of the GRU reads: the last hidden layer and the energy, ``[N, H + 1]``."""
    both = torch.cat((_neuron(q_4N, flat, plan.neuron), q_4N[3][:, None]), dim=1)
    return bounded_input(both.where(active_N1, 0.0), plan.clip)


def _state(gates_NG: Tensor, before_NC: Tensor | None, bias_G: Tensor) -> Tensor:
    """The next state from the gates n_i, r, z, n_h."""
    g_n, g_r, g_z, g_h = gates_NG.chunk(4, 1)
    b_n, b_r, b_z, b_h = bias_G.chunk(4)
    reset, update = torch.sigmoid(g_r + b_r), torch.sigmoid(g_z + b_z)
    if before_NC is None:
        new = torch.tanh(g_n + b_n + reset * b_h)
        return new - update * new
    new = torch.tanh(g_n + b_n + reset * (g_h + b_h))
    return new + update * (before_NC - new)


def _ends(heads_NA: Tensor, ends: Tensor, plan: KernelPlan) -> Tensor:
    """What the heads say: a displacement on each axis and a change of energy, ``[4, N]``."""
    energy, move = plan.split
    bias_A, w_e, w_m, b_e, b_m = ends.split([energy + move, energy, 3 * move, 1, 3])
    near_e, near_m = functional.gelu(heads_NA + bias_A).split(plan.split, 1)
    d_N3 = near_m @ w_m.view(3, move).t() + b_m
    return torch.cat((d_N3.t(), (near_e @ w_e + b_e)[None]))
