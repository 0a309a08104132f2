"""The fused loop for batches whose gradients do not fit: twice forward, once without gradients.

B batch, K first flows of a sample, N = B·K flows. As ``chunked`` does it: all flows run once and
leave only their ends; in backward they run again, some samples at a time. How many steps a flow
takes is decided by the first pass alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..kernels.loop import Ended
from ..kernels.plan import saved_bytes
from ..model.ending import Finished
from ..model.flows import Flows, launch, pick_cells
from ..model.noise import Key
from ..model.stepping import Parts
from .fused import Trip, ended_flows, finished, set_out

__all__ = ["chunk_for", "free_bytes", "run"]

_SHARE = 0.5
"""Of the free memory that a chunk may take where no budget is given: its weights' gradients,
products in between and the gaps between blocks need some, too."""


def run(
    parts: Parts,
    surface_BHW: Tensor,
    *,
    steps: int,
    key: Key,
    training: bool,
    scale: float | Tensor,
) -> Finished:
    """Send the energies of a surface through the lattice; ``backward`` works as ever, once."""
    settings, batch = parts.settings, surface_BHW.shape[0]
    trip = set_out(parts, surface_BHW, steps=steps, key=key, training=training, scale=scale)
    cells_BK = pick_cells(surface_BHW, settings)
    each = settings.lattice.cells if cells_BK is None else cells_BK.shape[1]
    chunk = chunk_for(trip, batch, each, surface_BHW.device)
    work = _Work(trip, cells_BK, chunk)
    ended = Ended(*_TwoPasses.apply(work, surface_BHW, *parts.parameters()))
    with torch.no_grad():  # numbers and samples only: energies and positions come from ``ended``
        flows: Flows = launch(
            surface_BHW, settings.lattice, settings, cells_BK=cells_BK, states=False
        )
    with torch.autocast(surface_BHW.device.type, enabled=False):
        return finished(trip, flows, ended, batch)


def chunk_for(trip: Trip, batch: int, each: int, device: torch.device) -> int:
    """Samples of a chunk: what is set, or what fits, in chunks of about the same size."""
    flows = trip.parts.settings.flows
    if flows.chunk is not None:
        return min(flows.chunk, batch)
    one = each * saved_bytes(trip.plan, trip.dtype.itemsize)
    if flows.activation_budget_gb is not None:
        room = flows.activation_budget_gb * 1e9
    elif device.type == "cuda":
        room = _SHARE * free_bytes(device)
    else:
        room = batch * one / 4
    most = min(batch, max(1, int(room // max(1, one))))
    return -(-batch // -(-batch // most))


def free_bytes(device: torch.device) -> int:
    """Memory of a GPU that this process could take, what it has set aside and not used included."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


class _Work(NamedTuple):
    trip: Trip
    cells_BK: Tensor | None
    chunk: int


class _TwoPasses(torch.autograd.Function):
    """From a surface to the ends of its flows, without a graph in between."""

    @staticmethod
    def forward(ctx: Any, work: _Work, surface_BHW: Tensor, *parameters: Tensor) -> Any:
        with torch.autocast(surface_BHW.device.type, enabled=False):
            _, ended = ended_flows(work.trip, surface_BHW, work.cells_BK)
        ctx.work = work
        # Saved, not just kept: a parameter that is changed before backward is then noticed.
        ctx.save_for_backward(surface_BHW, ended.k_N, *parameters)
        ctx.mark_non_differentiable(*ended[2:])
        return tuple(ended)

    @staticmethod
    @once_differentiable  # hides the name of ctx from the type checker
    def backward(ctx: Any, de_N: Tensor, dp_3N: Tensor, *_: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        surface_BHW, k_N, *parameters = ctx.saved_tensors
        work: _Work = ctx.work
        needed = ctx.needs_input_grad[2:]
        wanted = [one for one, need in zip(parameters, needed, strict=True) if need]
        each = k_N.shape[0] // surface_BHW.shape[0]
        sums: list[Tensor] | None = None
        surfaces: list[Tensor] = []
        for first in range(0, surface_BHW.shape[0], work.chunk):
            part_BHW = surface_BHW[first : first + work.chunk].detach().requires_grad_()
            rows = slice(first * each, (first + part_BHW.shape[0]) * each)
            cells_BK = None if work.cells_BK is None else work.cells_BK[first : first + work.chunk]
            with torch.enable_grad(), torch.autocast(surface_BHW.device.type, enabled=False):
                _, ended = ended_flows(
                    work.trip, part_BHW, cells_BK, first=first, k_N=k_N[rows].contiguous()
                )
                found = torch.autograd.grad(
                    (ended.e_N, ended.p_3N), (part_BHW, *wanted), (de_N[rows], dp_3N[:, rows])
                )
            surfaces.append(found[0])
            new = list(found[1:])
            sums = new if sums is None else [a + b for a, b in zip(sums, new, strict=True)]
        given = iter(sums or ())
        return None, torch.cat(surfaces), *(next(given) if need else None for need in needed)
