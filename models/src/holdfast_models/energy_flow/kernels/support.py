"""Where the fused loop can stand in for dense mode.

B batch.
"""

from __future__ import annotations

import torch

from ..model.flows import slots_for_children
from ..model.settings import ModelSettings
from .ops import has_triton

__all__ = ["unsupported", "unsupported_by_kernels"]


def unsupported(settings: ModelSettings, batch: int) -> str | None:
    """Why a batch cannot go through the fused loop; None: it can."""
    flows = settings.flows
    if flows.coupling:
        return "flows.coupling is on"
    if flows.filter_below is not None:
        return f"flows.filter_below is {flows.filter_below}"
    each = min(settings.lattice.cells, max(1, flows.capacity // batch))
    if slots_for_children(batch, each, settings.steps, settings):
        return f"flows can have children (flows.spawn_most is {flows.spawn_most})"
    return None


def unsupported_by_kernels(settings: ModelSettings, device: torch.device) -> str | None:
    """Why the kernels cannot do it there as exactly as was asked for; None: they can."""
    carrier = settings.carrier
    if not has_triton(device):
        return f"no Triton for {device}"
    if settings.flows.deterministic:
        return "flows.deterministic is on"
    if carrier.hidden % 16:
        return f"carrier.hidden is {carrier.hidden}, no multiple of 16"
    for name, size in (("hidden", carrier.neuron_hidden), ("output", carrier.neuron_output)):
        if size < 16 or size > 128 or size & (size - 1):
            return f"carrier.neuron_{name} is {size}, no power of two from 16 to 128"
    return None
