"""Chunked mode: bounded memory and exact gradients, for one more computation of the loop.

B batch, K first flows of a sample, N rows of flows, R rows of children, C carrier width, L layers.

Flows of different samples meet nowhere before the losses. So the loop runs once for the whole
batch without a graph; surface and loss are built on the flows' ends; and in backward the loop runs
again, a few samples at a time, now with a graph that begins with the gradients of those ends.

The second pass decides nothing anew. When a flow was born, of whom, and how many steps it took is
all there is to know, and the first pass has it: the last bit of a matrix product, which may differ
with the number of rows, cannot send a flow another way. Noise is named, not drawn.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..kernels.support import against, against_kernels
from ..model.ending import Finished, Tally, finish
from ..model.flows import Flows, blank, join, launch, pick_cells
from ..model.noise import Key
from ..model.settings import ModelSettings
from ..model.stepping import Parts, Ride, bear, plan_ride, push
from . import compact
from . import fused_chunks as chunks

__all__ = ["activation_bytes", "run", "samples_within"]

# Counted with hooks on what autograd saves: so many numbers for each one of a width.
_SAVED_PER_LAYER, _SAVED_PER_HEAD, _SAVED_PER_NEURON, _SAVED_PER_INPUT = 9, 2, 8, 4

_PARTS = 4
"""Chunks of a batch where neither their size nor a budget is given."""


def run(
    parts: Parts,
    surface_BHW: Tensor,
    *,
    steps: int,
    key: Key,
    training: bool,
    scale: float | Tensor,
) -> Finished:
    """Send the energies of a surface through the lattice; see ``dense.run``.

    ``backward`` works as ever, once. On a GPU both passes are those of fused mode where it can.
    """
    settings, batch = parts.settings, surface_BHW.shape[0]
    if against(settings, batch) is None and against_kernels(settings, surface_BHW.device) is None:
        return chunks.run(parts, surface_BHW, steps=steps, key=key, training=training, scale=scale)
    ride = plan_ride(settings, surface_BHW, steps=steps, key=key, training=training, scale=scale)
    cells_BK = pick_cells(surface_BHW, settings)
    each = settings.lattice.cells if cells_BK is None else cells_BK.shape[1]
    chunk = settings.flows.chunk or _chunk_for(settings, surface_BHW, each, steps)
    plan = _Plan(parts, ride, cells_BK, min(chunk, batch))
    columns = _TwoPasses.apply(plan, surface_BHW, *parts.parameters())
    width = len(Flows._fields)
    flows, tally = Flows(*columns[:width]), Tally(*columns[width:])
    return finish(flows, tally, settings, batch, batch * each)


def activation_bytes(settings: ModelSettings, each: int, steps: int, itemsize: int = 4) -> int:
    """About how much one sample leaves behind for backward in the other modes.

    Args:
        settings: of the whole model.
        each: first flows of a sample; children are not known beforehand and not counted.
        steps: of the lattice.
        itemsize: bytes of a number in the carrier, 2 under autocast.
    """
    carrier = settings.carrier
    state = _SAVED_PER_LAYER * carrier.layers * carrier.hidden
    heads = _SAVED_PER_HEAD * (carrier.hidden // 2 + 64)
    inputs = _SAVED_PER_NEURON * carrier.neuron_hidden + _SAVED_PER_INPUT * carrier.neuron_output
    return each * steps * (state + heads + inputs) * itemsize


def samples_within(budget_gb: float, sample_bytes: int) -> int:
    """How many samples fit into a budget; one does in any case."""
    return max(1, int(budget_gb * 1e9 // max(1, sample_bytes)))


def _chunk_for(settings: ModelSettings, surface_BHW: Tensor, each: int, steps: int) -> int:
    if settings.flows.activation_budget_gb is None:
        return -(-surface_BHW.shape[0] // _PARTS)
    itemsize = 2 if torch.is_autocast_enabled(surface_BHW.device.type) else 4
    needed = activation_bytes(settings, each, steps, itemsize)
    return samples_within(settings.flows.activation_budget_gb, needed)


class _Plan(NamedTuple):
    parts: Parts
    ride: Ride
    cells_BK: Tensor | None
    chunk: int


class _Record(NamedTuple):
    """What the first pass decided, by the flows' numbers."""

    k_N: Tensor
    parent_N: Tensor
    born_N: Tensor


class _TwoPasses(torch.autograd.Function):
    """From a surface to the ends of its flows, without a graph in between."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, surface_BHW: Tensor, *parameters: Tensor) -> Any:
        kind = surface_BHW.device.type
        ctx.plan = plan
        ctx.autocast = (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        settings = plan.parts.settings
        with _same_autocast(ctx.autocast):
            flows = launch(surface_BHW, settings.lattice, settings, cells_BK=plan.cells_BK)
            flows, tally = compact.roll(plan.parts, plan.ride, flows)
        # Saved, not just kept: a parameter that is changed before backward is then noticed.
        ctx.save_for_backward(surface_BHW, flows.k_N, flows.parent_N, flows.born_N, *parameters)
        differentiable = (flows.p_N3, flows.e_N1)
        columns = (*flows, *tally)
        ctx.mark_non_differentiable(
            *(column for column in columns if all(column is not one for one in differentiable))
        )
        return columns

    @staticmethod
    @once_differentiable  # hides the name of ctx from the type checker
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        surface_BHW, k_N, parent_N, born_N, *parameters = ctx.saved_tensors
        record = _Record(k_N, parent_N, born_N)
        plan: _Plan = ctx.plan
        by_name = dict(zip(Flows._fields, grads, strict=False))
        ends = (by_name["p_N3"], by_name["e_N1"])
        wanted = [
            one for one, needed in zip(parameters, ctx.needs_input_grad[2:], strict=True) if needed
        ]
        sums: list[Tensor | None] = [None] * len(wanted)
        surfaces: list[Tensor] = []
        for first in range(0, surface_BHW.shape[0], plan.chunk):
            part_BHW = surface_BHW[first : first + plan.chunk].detach().requires_grad_()
            with torch.enable_grad(), _same_autocast(ctx.autocast):
                rows_N, *results = _again(plan, record, part_BHW, first, surface_BHW.shape[0])
            seeds = [grad.index_select(0, rows_N) for grad in ends]
            pairs = [pair for pair in zip(results, seeds, strict=True) if pair[0].requires_grad]
            outputs, seeds = zip(*pairs, strict=True)
            found = torch.autograd.grad(outputs, (part_BHW, *wanted), seeds, allow_unused=True)
            surfaces.append(torch.zeros_like(part_BHW) if found[0] is None else found[0])
            sums = [_plus(*pair) for pair in zip(sums, found[1:], strict=True)]
        given = iter(sums)
        back = [next(given) if needed else None for needed in ctx.needs_input_grad[2:]]
        return None, torch.cat(surfaces), *back


def _again(
    plan: _Plan, record: _Record, part_BHW: Tensor, first: int, batch: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The second pass for some samples: numbers of their flows, and positions and energies."""
    settings, size = plan.parts.settings, part_BHW.shape[0]
    cells_BK = None if plan.cells_BK is None else plan.cells_BK[first : first + size]
    flows = launch(part_BHW, settings.lattice, settings, cells_BK=cells_BK, first=first)
    rows = flows.index_N.shape[0]
    each = rows // size
    child_R = _child_numbers(record, first, size, batch, each)
    if child_R.shape[0]:
        flows = join([flows, blank(flows, child_R)])
    number_N = flows.index_N
    born_N, k_N = record.born_N[number_N], record.k_N[number_N]
    parent_N = record.parent_N[number_N]
    of_child_N = rows + torch.searchsorted(child_R, parent_N)
    parent_N = torch.where(parent_N < batch * each, parent_N - first * each, of_child_N)
    last_N = born_N + k_N
    ride = plan.ride._replace(batch=size)
    # The one number that is read for each chunk, beside the count of its children.
    for t in range(int(last_N.max()) + 1):
        before_N3 = flows.p_N3
        pushed = push(plan.parts, ride, flows, (t > born_N) & (t <= last_N), t)
        flows = flows._replace(p_N3=pushed.p_N3, e_N1=pushed.e_N1, h_LNC=pushed.h_LNC)
        if child_R.shape[0]:
            flows = bear(flows, before_N3, parent_N, born_N == t, t)
    return number_N, flows.p_N3, flows.e_N1


def _child_numbers(record: _Record, first: int, size: int, batch: int, each: int) -> Tensor:
    """Numbers of the children that these samples had."""
    slots = record.born_N.shape[0] // batch - each
    begin = batch * each + first * slots
    born_R = record.born_N[begin : begin + size * slots] >= 0
    return begin + born_R.nonzero()[:, 0]


def _plus(total: Tensor | None, more: Tensor | None) -> Tensor | None:
    if total is None or more is None:
        return more if total is None else total
    return total + more


def _same_autocast(state: tuple[str, torch.dtype, bool]) -> torch.autocast:
    """The first pass's autocast, without its cache: that must not outlive a graph."""
    kind, dtype, enabled = state
    return torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False)
