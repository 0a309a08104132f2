"""Whether the kernels compute on this device what they should, tried once before they are used.

N flows, C carrier width, T lattice steps. A few hundred flows run forward and backward through
the kernels and through their plain forms; who fails, or differs by more than rounding, is not
used. The kernels are compiled on the way, which is needed anyway.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from .loop import LoopStart, run_loop
from .ops import Ops, kernels, references
from .plan import BlockSizes, KernelPlan
from .weights import Layer, Weights

__all__ = ["fault"]

_FLOWS = 1024
_STEPS = 3
_FAULTS: dict[tuple[Any, ...], str | None] = {}


def fault(plan: KernelPlan, dtype: torch.dtype, device: torch.device) -> str | None:
    """What is wrong with the kernels for such a plan; None: nothing.

    Args:
        plan: sizes and behaviour; its number of steps does not matter.
        dtype: of states and products.
        device: where.
    """
    plan = plan._replace(
        steps=_STEPS,
        blocks=None,
        convergence=dataclasses.replace(plan.convergence, on=False),
    )
    key = (plan, dtype, device)
    if key not in _FAULTS:
        if torch.cuda.is_current_stream_capturing():
            return "it cannot be tried while a graph is captured"
        try:
            with torch.inference_mode(False), torch.enable_grad():
                _FAULTS[key] = _compared(plan, dtype, device)
        except Exception as error:  # whatever it is, there is another mode
            _FAULTS[key] = f"{type(error).__name__}: {error}"
    return _FAULTS[key]


def _compared(plan: KernelPlan, dtype: torch.dtype, device: torch.device) -> str | None:
    wanted = _one_pass(plan, dtype, device, references())
    got = _one_pass(plan._replace(blocks=BlockSizes()), dtype, device, kernels())
    # 16 bits: the last bit of a state is 0.4 %, and a sum of gradients may nearly cancel.
    limits = (0.02, 0.2) if dtype.itemsize == 2 else (1e-3, 1e-2)
    for name, limit, own, theirs in zip(("values", "gradients"), limits, got, wanted, strict=True):
        apart = float((own - theirs).norm() / theirs.norm())
        if not apart <= limit:
            return f"{name} of the kernels are {apart:.1e} from those of plain torch"
    return None


def _one_pass(
    plan: KernelPlan, dtype: torch.dtype, device: torch.device, ops: Ops
) -> tuple[Tensor, Tensor]:
    """All values in one row of numbers, and all gradients; always from the same weights."""
    random = torch.Generator(device).manual_seed(0)

    def normal(*shape: int, size: float) -> Tensor:
        return size * torch.randn(*shape, device=device, generator=random)

    wide, narrow, (energy, move) = plan.hidden, plan.neuron, plan.split
    per = wide**-0.5
    layers = []
    for number in range(plan.layers):
        inputs = plan.inputs if number == 0 else wide
        layers.append(
            Layer(
                normal(3 * wide, inputs, size=inputs**-0.5),
                normal(3 * wide, wide, size=per),
                normal(4 * wide, size=0.1),
            )
        )
    weights = Weights(
        neuron=normal(narrow * narrow + 10 * narrow, size=narrow**-0.5),
        ends=normal(plan.heads + energy + 3 * move + 4, size=0.1),
        heads=normal(plan.heads, wide, size=per),
        layers=tuple(layers),
        answer_w=normal(plan.answer, narrow, size=narrow**-0.5),
        answer_b=normal(plan.answer, size=0.1),
    )
    e_N, p_3N = normal(_FLOWS, size=0.5), normal(3, _FLOWS, size=0.3).clamp(-0.9, 0.9)
    start = LoopStart(p_3N, normal(plan.steps, 3, _FLOWS, size=0.02), torch.ones(1, device=device))
    leaves = [e_N, *weights.flat()]
    with torch.autocast(device.type, enabled=False):
        for leaf in leaves:
            leaf.requires_grad_()
        ended = run_loop(plan, weights, e_N, start, dtype=dtype, ops=ops)
        loss = ended.e_N.square().mean() + ended.p_3N.square().mean()
        found = torch.autograd.grad(loss, leaves)
    values = torch.cat((ended.e_N.detach(), ended.p_3N.detach().flatten(), ended.k_N.float()))
    return values, torch.cat([one.flatten() for one in found])
