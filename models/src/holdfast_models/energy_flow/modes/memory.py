"""How much memory a training pass takes in each mode, known before it begins.

B batch, K first flows of a sample, N rows of flows, C carrier width, L layers, T lattice steps.
"""

from __future__ import annotations

import torch

from holdfast.training import free_memory

from ..kernels.plan import plan_for, saved_bytes
from ..model.flows import slots_for_children
from ..model.settings import ModelSettings
from ..model.stepping import Parts

__all__ = ["activation_bytes", "chunk_for", "first_flows", "pass_bytes", "rows", "sample_bytes"]

# Counted with hooks on what autograd saves: so many numbers for each one of a width.
_SAVED_PER_LAYER, _SAVED_PER_HEAD, _SAVED_PER_NEURON, _SAVED_PER_INPUT = 9, 2, 8, 4

_PASSING = 8
"""Numbers for each one of the carrier's width that a layer needs while it is computed."""

_PARTS = 4
"""Chunks of a batch on a CPU, where neither their size nor a budget is given; more if need be."""

_SHARE = 0.5
"""Of the free memory that a chunk may take: its weights' gradients, products in between and the
gaps between blocks need some, too."""


def first_flows(settings: ModelSettings, batch: int) -> int:
    """Flows of the first generation of a sample, K."""
    return min(settings.lattice.cells, max(1, settings.flows.capacity // batch))


def rows(settings: ModelSettings, batch: int) -> int:
    """Flows that a sample may come to, children of all generations among them."""
    each = first_flows(settings, batch)
    return each + slots_for_children(batch, each, settings.steps, settings)


def activation_bytes(settings: ModelSettings, flows: int, steps: int, itemsize: int = 4) -> int:
    """About how much flows leave behind for backward in the plain modes.

    Args:
        settings: of the whole model.
        flows: how many.
        steps: of the lattice.
        itemsize: bytes of a number in the carrier, 2 under autocast.
    """
    carrier = settings.carrier
    state = _SAVED_PER_LAYER * carrier.layers * carrier.hidden
    heads = _SAVED_PER_HEAD * (carrier.hidden // 2 + 64)
    inputs = _SAVED_PER_NEURON * carrier.neuron_hidden + _SAVED_PER_INPUT * carrier.neuron_output
    return flows * steps * (state + heads + inputs) * itemsize


def sample_bytes(parts: Parts, batch: int, itemsize: int, *, fused: bool) -> int:
    """What a sample leaves behind for backward.

    Args:
        parts: neuron, carrier and settings.
        batch: B, which shares the capacity.
        itemsize: bytes of a number in the carrier.
        fused: by the loop of ``kernels``.
    """
    settings = parts.settings
    if fused:
        each = first_flows(settings, batch)
        return each * saved_bytes(plan_for(parts, settings.steps), itemsize)
    return activation_bytes(settings, rows(settings, batch), settings.steps, itemsize)


def pass_bytes(parts: Parts, batch: int, itemsize: int, *, fused: bool, chunk: int | None) -> int:
    """What a training pass holds at once.

    Args:
        parts: neuron, carrier and settings.
        batch: B.
        itemsize: bytes of a number in the carrier.
        fused: by the loop of ``kernels``.
        chunk: samples of the second pass at a time, in chunked mode; None: another mode.
    """
    one = sample_bytes(parts, batch, itemsize, fused=fused)
    if chunk is None:
        return batch * one
    # The first pass keeps nothing, but computes a step with all flows at once: the states before
    # and after it, and the products of a layer.
    carrier = parts.settings.carrier
    each = (2 * carrier.layers + _PASSING) * carrier.hidden * itemsize
    return batch * rows(parts.settings, batch) * each + chunk * one


def chunk_for(settings: ModelSettings, batch: int, one: int, device: torch.device) -> int:
    """Samples of a chunk: what is set, or what fits, in chunks of about the same size.

    Args:
        settings: of the whole model.
        batch: B.
        one: bytes that a sample leaves behind.
        device: whose memory counts where no budget is given.
    """
    flows = settings.flows
    if flows.chunk is not None:
        return min(flows.chunk, batch)
    if flows.activation_budget_gb is not None:
        room = flows.activation_budget_gb * 1e9
    else:
        room = _SHARE * free_memory(device)
        if device.type == "cpu":
            room = min(room, batch * one / _PARTS)
    most = min(batch, max(1, int(room // max(1, one))))
    return -(-batch // -(-batch // most))
