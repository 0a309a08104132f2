"""The whole loop of T lattice steps as one autograd function.

N flows, C carrier width, L layers, T lattice steps, U columns of layer 0's input, A width of the
heads, G = 4C gates, R columns of a row of states.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..model.convergence import EarlyStop
from .backward import Saved, gradients
from .buffers import Buffers, allocate, zeros
from .ops import Ops
from .plan import KernelPlan, slots
from .weights import Half, Layer, Weights, halve

__all__ = ["Ended", "LoopStart", "run_loop"]


class LoopStart(NamedTuple):
    """What the loop begins with, beside energies and weights; no gradient reaches any of it."""

    p_3N: Tensor
    noise_T3N: Tensor | None  # of all steps
    scale: Tensor  # of displacements, one number
    k_N: Tensor | None = None  # steps that each flow takes, where an earlier pass has decided


class Ended(NamedTuple):
    """How the flows ended; a gradient reaches ``e_N`` and ``p_3N`` only."""

    e_N: Tensor
    p_3N: Tensor
    k_N: Tensor
    exit_N: Tensor
    alive_N: Tensor
    done: Tensor
    steps: Tensor
    guarded: Tensor
    input_most: Tensor
    state_most: Tensor


class _Rest(NamedTuple):
    plan: KernelPlan
    answer_w: Tensor
    answer_b: Tensor
    start: LoopStart
    dtype: torch.dtype
    ops: Ops
    keep: bool


def run_loop(
    plan: KernelPlan,
    weights: Weights,
    e_N: Tensor,
    start: LoopStart,
    *,
    dtype: torch.dtype,
    ops: Ops,
) -> Ended:
    """Run the loop.

    Args:
        plan: sizes and behaviour.
        weights: from ``weights.fold``.
        e_N: energies at the start, fp32.
        start: positions, noise and the rest.
        dtype: of states and products.
        ops: the kernels.
    """
    flat = weights.flat()
    keep = torch.is_grad_enabled() and any(one.requires_grad for one in (e_N, *flat))
    rest = _Rest(plan, weights.answer_w, weights.answer_b, start, dtype, ops, keep)
    return Ended(*_Loop.apply(rest, e_N, *flat))


class _Loop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rest: _Rest, e_N: Tensor, *flat: Tensor) -> tuple[Tensor, ...]:
        plan, dtype = rest.plan, rest.dtype
        neuron, ends, heads_w, *layers = flat
        grouped = [Layer(*layers[i : i + 3]) for i in range(0, len(layers), 3)]
        half = [halve(layer, number, dtype) for number, layer in enumerate(grouped)]
        biases = [layer.bias for layer in grouped]
        heads_half = heads_w.to(dtype)
        buffers = allocate(plan, e_N, rest.start.p_3N, rest.start.k_N, dtype, rest.keep)
        out, ran = _forward(rest, buffers, half, heads_half, biases, neuron, ends)
        if rest.keep:
            # Not by save_for_backward: the backward pass writes into them.
            ctx.kept = Saved(plan, ran, buffers, half, heads_half, biases, neuron, ends, rest.ops)
        ctx.mark_non_differentiable(*out[2:])
        return out

    @staticmethod
    @once_differentiable  # hides the name of ctx from the type checker
    def backward(ctx: Any, de_N: Tensor, dp_3N: Tensor, *_: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if ctx.kept is None:
            raise RuntimeError(
                "the fused loop was run backward before, and its buffers are overwritten; "
                "call backward once for each forward, or set flows.mode=dense"
            )
        kept, ctx.kept = ctx.kept, None
        with torch.autocast(de_N.device.type, enabled=False):
            return None, *gradients(kept, de_N, dp_3N)


def _forward(
    rest: _Rest,
    buffers: Buffers,
    half: list[Half],
    heads_half: Tensor,
    biases: list[Tensor],
    neuron: Tensor,
    ends: Tensor,
) -> tuple[tuple[Tensor, ...], int]:
    plan, ops, start = rest.plan, rest.ops, rest.start
    flows, device = buffers.q_T4N.shape[2], buffers.q_T4N.device
    steps, wide, keep = plan.steps, plan.hidden, rest.keep
    ring = buffers.state_SNR.shape[0]
    k_N, exit_N = zeros((flows,), (flows,), device=device, dtype=torch.int32)
    per = steps, slots("neuron", flows, plan)
    input_most, state_most = zeros(
        per, (steps, plan.layers, slots("gates", flows, plan)), device=device
    )
    guarded, left = zeros(
        per, (steps, slots("heads", flows, plan)), device=device, dtype=torch.int32
    )
    early_stop, made = None, torch.full((), flows, device=device)
    if plan.convergence.on and start.k_N is None:
        early_stop = EarlyStop(plan.convergence, device, every=1)
    # Where it is decided who moves when, what this pass would decide is not looked at.
    aside = None if start.k_N is None else torch.empty_like(buffers.alive_TN[0])
    ran = steps
    for t in range(steps):
        slab = t if keep else 0
        alive_N, stop = buffers.alive_TN[t], buffers.stop_T[t : t + 1]
        if early_stop is not None and t >= plan.convergence.least_steps:
            done = left[:t].sum()
            flag, leave = early_stop.check(t, done, made, made - done)
            stop.copy_(flag)
            if leave:
                ran = t
                buffers.stop_T[t:].fill_(1)
                break
        ops.neuron_forward(
            buffers.q_T4N[t], alive_N, stop, neuron, rest.answer_w, rest.answer_b,
            buffers.state_SNR[t % ring], input_most[t], guarded[t], plan,
        )  # fmt: skip
        after_NC = buffers.state_SNR[0]
        for number, weights in enumerate(half):
            begin = plan.inputs + number * wide
            inputs = plan.inputs if number == 0 else wide
            read_NR = buffers.state_SNR[(t + number) % ring]
            before_NC = None if t == 0 else read_NR[:, begin : begin + wide]
            gates_NG = buffers.gates[number][slab]
            products(weights, read_NR[:, begin - inputs : begin + wide], gates_NG, first=t == 0)
            after_NC = buffers.state_SNR[(t + number + 1) % ring][:, begin : begin + wide]
            ops.gates_forward(
                gates_NG, before_NC, biases[number], after_NC, alive_N, stop,
                state_most[t, number], plan,
            )  # fmt: skip
        heads_NA = buffers.heads_TNA[slab]
        torch.mm(after_NC, heads_half.t(), out=heads_NA)
        ops.heads_forward(
            heads_NA, ends, buffers.q_T4N[t], alive_N, stop,
            None if start.noise_T3N is None else start.noise_T3N[t], start.scale,
            buffers.q_T4N[t + 1], buffers.alive_TN[t + 1] if aside is None else aside,
            buffers.slopes_T8N[slab], k_N, exit_N, left[t], plan,
        )  # fmt: skip
    # Copies, because the buffers live on: a result must not be a piece of them.
    out = (
        buffers.q_T4N[ran, 3].clone(),
        buffers.q_T4N[ran, :3].clone(),
        k_N,
        exit_N,
        buffers.alive_TN[ran] != 0,
        left.sum(),
        steps - buffers.stop_T.sum(),
        guarded.sum(),
        input_most.amax(),
        state_most.amax(),
    )
    return out, ran


def products(weights: Half, read_NX: Tensor, gates_NG: Tensor, *, first: bool) -> None:
    """The gates' products of a layer from ``read_NX``, its input and old state side by side.

    Args:
        weights: of the layer.
        read_NX: input and old state.
        gates_NG: gets the products.
        first: the state is zero and not read, and n_h is not written.
    """
    wide = weights.state_w.shape[1]
    inputs = read_NX.shape[1] - wide
    if first:
        torch.mm(read_NX[:, :inputs], weights.input_w.t(), out=gates_NG[:, : 3 * wide])
        return
    if weights.both_w.shape[0] == 4 * wide:
        torch.mm(read_NX, weights.both_w.t(), out=gates_NG)
        return
    torch.mm(read_NX, weights.both_w.t(), out=gates_NG[:, wide : 3 * wide])
    if weights.new_w is not None:
        flows, row, gates = read_NX.shape[0], read_NX.stride(0), gates_NG.stride(0)
        two_2NC = read_NX.as_strided((2, flows, wide), (wide, row, 1))
        out_2NC = gates_NG.as_strided((2, flows, wide), (3 * wide, gates, 1))
        torch.bmm(two_2NC, weights.new_w.transpose(1, 2), out=out_2NC)
        return
    torch.mm(read_NX[:, :inputs], weights.input_w[:wide].t(), out=gates_NG[:, :wide])
    torch.mm(read_NX[:, inputs:], weights.state_w[2 * wide :].t(), out=gates_NG[:, 3 * wide :])
