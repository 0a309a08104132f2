"""The backward pass of the fused loop.

N flows, C carrier width, L layers, T lattice steps, U columns of layer 0's input, A width of the
heads, G = 4C gates, P slots. Gradients of gates and heads are written where their values were, and
weight gradients are one product over all steps each.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .buffers import Buffers, zeros
from .ops import Ops
from .plan import KernelPlan, slots
from .weights import Half

__all__ = ["Saved", "gradients"]


class Saved(NamedTuple):
    """What the forward pass leaves."""

    plan: KernelPlan
    ran: int  # lattice steps, up to an early stop
    buffers: Buffers
    half: list[Half]
    heads_half: Tensor
    biases: list[Tensor]
    neuron: Tensor
    ends: Tensor
    ops: Ops


def gradients(saved: Saved, de_N: Tensor, dp_3N: Tensor) -> list[Tensor]:
    """Gradients of the energies at the start and of all weights, in the order of ``Weights.flat``.

    Args:
        saved: overwritten.
        de_N: gradient of the energies at the end.
        dp_3N: of the positions at the end.
    """
    plan, buffers, ops = saved.plan, saved.buffers, saved.ops
    steps, wide, flows = saved.ran, plan.hidden, de_N.shape[0]
    device, dtype = de_N.device, saved.heads_half.dtype
    d_4N = torch.cat((dp_3N, de_N[None]))
    neuron, ends = saved.neuron, saved.ends
    partial_LPG, partial_PF, partial_PE = zeros(
        (plan.layers, slots("gates_sums", flows, plan), 4 * wide),
        (slots("neuron_sums", flows, plan), len(neuron)),
        (slots("heads_sums", flows, plan), len(ends)),
        device=device,
    )
    dh = [torch.empty(flows, wide, device=device, dtype=dtype) for _ in saved.half]
    du_NU = torch.empty(flows, plan.inputs, device=device, dtype=dtype)
    for t in reversed(range(steps)):
        last = t == steps - 1
        heads_NA = buffers.heads_TNA[t]
        ops.heads_backward(heads_NA, ends, buffers.slopes_T8N[t], d_4N, partial_PE, plan)
        _add(dh[-1], heads_NA, saved.heads_half, fresh=last)
        for number in reversed(range(plan.layers)):
            begin = plan.inputs + number * wide
            gates_NG, half = buffers.gates[number][t], saved.half[number]
            before_NC = None
            if t > 0:
                before_NC = buffers.state_SNR[t + number][:, begin : begin + wide]
            ops.gates_backward(
                gates_NG, before_NC, saved.biases[number], dh[number], partial_LPG[number], plan
            )
            into = dh[number - 1] if number else du_NU
            _add(into, gates_NG[:, : 3 * wide], half.input_w, fresh=last or not number)
            if t > 0:
                _add(dh[number], gates_NG[:, wide:], half.state_w, fresh=False)
        ops.neuron_backward(
            buffers.q_T4N[t], buffers.alive_TN[t], buffers.stop_T[t : t + 1], neuron, du_NU,
            buffers.slopes_T8N[t], d_4N, partial_PF, plan,
        )  # fmt: skip
    found = [d_4N[3], partial_PF.sum(0), partial_PE.sum(0)]
    return found + _matrix_gradients(plan, steps, buffers, partial_LPG.sum(1))


def _matrix_gradients(
    plan: KernelPlan, steps: int, buffers: Buffers, bias_LG: Tensor
) -> list[Tensor]:
    """Of heads and layers, each in one product over all steps and flows."""
    wide, layers = plan.hidden, plan.layers
    state_SNR = buffers.state_SNR
    top = plan.inputs + (layers - 1) * wide
    found = [_weight(buffers.heads_TNA[:steps], state_SNR[layers : layers + steps, :, top:])]
    for number in range(layers):
        gates_TNG = buffers.gates[number][:steps]
        begin = plan.inputs + number * wide
        from_ = 0 if number == 0 else begin - wide
        read = state_SNR[number : number + steps, :, from_:begin]
        state = state_SNR[number + 1 : number + steps, :, begin : begin + wide]
        found.append(_weight(gates_TNG[:, :, : 3 * wide], read))
        if steps > 1:
            found.append(_weight(gates_TNG[1:, :, wide:], state))
        else:
            found.append(torch.zeros(3 * wide, wide, device=bias_LG.device))
        found.append(bias_LG[number])
    return found


def _add(into: Tensor, gradient: Tensor, weight: Tensor, *, fresh: bool) -> None:
    """``into += gradient @ weight``; fresh: what was there does not count."""
    if fresh:
        torch.mm(gradient, weight, out=into)
    else:
        into.addmm_(gradient, weight)


def _weight(gradient_TNG: Tensor, read_TNX: Tensor) -> Tensor:
    """Sum over all rows of the outer products, in fp32."""
    a, b = gradient_TNG.flatten(0, 1), read_TNX.flatten(0, 1)  # views: rows are evenly spaced
    if not a.is_cuda or a.dtype == torch.float32:
        return a.float().t() @ b.float()
    return torch.mm(a.t(), b, out_dtype=torch.float32)
