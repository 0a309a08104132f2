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

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..kernels.loop import Ended
from ..kernels.support import unsupported, unsupported_by_kernels
from ..model.ending import Finished, Tally, finish
from ..model.flows import Flows, blank, join, launch, pick_cells
from ..model.stepping import LatticePass, Parts, add_children, push, sigma_3
from . import compact
from .fused import FusedPass, ended_flows, finished, prepare
from .memory import chunk_for, sample_bytes

__all__ = ["run", "run_fused", "run_plain"]


def run(parts: Parts, lattice_pass: LatticePass, surface_BHW: Tensor) -> Finished:
    """Send the energies of a surface through the lattice; see ``model.loop.run``.

    ``backward`` works as ever, once. On a GPU both passes are those of fused mode where it can.
    """
    settings = parts.settings
    if unsupported(settings, lattice_pass.batch) or unsupported_by_kernels(
        settings, surface_BHW.device
    ):
        return run_plain(parts, lattice_pass, surface_BHW)
    return run_fused(parts, lattice_pass, surface_BHW)


def run_plain(parts: Parts, lattice_pass: LatticePass, surface_BHW: Tensor) -> Finished:
    """Both passes in plain torch, the first in compact mode."""
    settings, device = parts.settings, surface_BHW.device
    cells_BK = pick_cells(surface_BHW, settings)
    each = settings.lattice.cells if cells_BK is None else cells_BK.shape[1]
    itemsize = 2 if torch.is_autocast_enabled(device.type) else 4
    one = sample_bytes(parts, lattice_pass.batch, itemsize, fused=False)
    work = _Plain(
        parts, lattice_pass, cells_BK, chunk_for(settings, lattice_pass.batch, one, device)
    )
    columns = _TwoPasses.apply(work, surface_BHW, *parts.parameters())
    width = len(Flows._fields)
    flows, tally = Flows(*columns[:width]), Tally(*columns[width:])
    return finish(flows, tally, settings, lattice_pass.batch, lattice_pass.batch * each)


def run_fused(parts: Parts, lattice_pass: LatticePass, surface_BHW: Tensor) -> Finished:
    """Both passes by the loop of ``kernels``."""
    settings, kind = parts.settings, surface_BHW.device.type
    prepared = prepare(parts, lattice_pass, surface_BHW)
    cells_BK = pick_cells(surface_BHW, settings)
    one = sample_bytes(parts, lattice_pass.batch, prepared.dtype.itemsize, fused=True)
    work = _Fused(
        prepared, cells_BK, chunk_for(settings, lattice_pass.batch, one, surface_BHW.device)
    )
    with torch.autocast(kind, enabled=False):
        ended = Ended(*_TwoPasses.apply(work, surface_BHW, *parts.parameters()))
        with torch.no_grad():  # numbers and samples only: the rest comes from ``ended``
            flows = launch(surface_BHW, settings.lattice, settings, cells_BK=cells_BK, states=False)
        return finished(prepared, flows, ended, lattice_pass.batch)


class _Work(Protocol):
    """A loop that can be run twice."""

    @property
    def chunk(self) -> int:
        """Samples of the second pass at a time."""
        ...

    def first(self, surface_BHW: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """All ends, of which the first two carry gradients, and what the second pass must know."""
        ...

    def again(
        self, part_BHW: Tensor, first: int, known: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """The two ends that carry gradients, of some samples, and the gradients that are theirs."""
        ...


class _TwoPasses(torch.autograd.Function):
    """From a surface to the ends of its flows, without a graph in between."""

    @staticmethod
    def forward(ctx: Any, work: _Work, surface_BHW: Tensor, *parameters: Tensor) -> Any:
        kind = surface_BHW.device.type
        ctx.autocast = (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        with _same_autocast(ctx.autocast):
            ends, known = work.first(surface_BHW)
        ctx.work, ctx.known = work, len(known)
        # Saved, not just kept: a parameter that is changed before backward is then noticed.
        ctx.save_for_backward(surface_BHW, *known, *parameters)
        ctx.mark_non_differentiable(*ends[2:])
        return tuple(ends)

    @staticmethod
    @once_differentiable  # hides the name of ctx from the type checker
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        surface_BHW, *rest = ctx.saved_tensors
        known, parameters = rest[: ctx.known], rest[ctx.known :]
        needed = ctx.needs_input_grad[2:]
        wanted = [one for one, need in zip(parameters, needed, strict=True) if need]
        work: _Work = ctx.work
        sums: list[Tensor | None] = [None] * len(wanted)
        surfaces: list[Tensor] = []
        for first in range(0, surface_BHW.shape[0], work.chunk):
            part_BHW = surface_BHW[first : first + work.chunk].detach().requires_grad_()
            with torch.enable_grad(), _same_autocast(ctx.autocast):
                ends, seeds = work.again(part_BHW, first, known, grads[:2])
            pairs = [pair for pair in zip(ends, seeds, strict=True) if pair[0].requires_grad]
            outputs, seeds = zip(*pairs, strict=True)
            found = torch.autograd.grad(outputs, (part_BHW, *wanted), seeds, allow_unused=True)
            surfaces.append(torch.zeros_like(part_BHW) if found[0] is None else found[0])
            sums = [_plus(*pair) for pair in zip(sums, found[1:], strict=True)]
        given = iter(sums)
        return None, torch.cat(surfaces), *(next(given) if need else None for need in needed)


class _Fused(NamedTuple):
    """The loop of ``kernels``; what must be known is the steps of each flow."""

    prepared: FusedPass
    cells_BK: Tensor | None
    chunk: int

    def first(self, surface_BHW: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """See ``_Work``."""
        _, ended = ended_flows(self.prepared, surface_BHW, self.cells_BK)
        return ended, [ended.k_N]

    def again(
        self, part_BHW: Tensor, first: int, known: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """See ``_Work``."""
        (k_N,), (de_N, dp_3N) = known, grads
        size = part_BHW.shape[0]
        each = k_N.shape[0] // self.prepared.lattice_pass.batch
        rows = slice(first * each, (first + size) * each)
        cells_BK = None if self.cells_BK is None else self.cells_BK[first : first + size]
        k_N = k_N[rows].contiguous()
        _, ended = ended_flows(self.prepared, part_BHW, cells_BK, first=first, k_N=k_N)
        return ended[:2], (de_N[rows], dp_3N[:, rows])


class _Plain(NamedTuple):
    """Compact mode and its second pass; what must be known is steps, parent and birth."""

    parts: Parts
    lattice_pass: LatticePass
    cells_BK: Tensor | None
    chunk: int

    def first(self, surface_BHW: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """See ``_Work``."""
        settings = self.parts.settings
        flows = launch(surface_BHW, settings.lattice, settings, cells_BK=self.cells_BK)
        flows, tally = compact.run_steps(self.parts, self.lattice_pass, flows)
        return (*flows, *tally), (flows.k_N, flows.parent_N, flows.born_N)

    def again(
        self, part_BHW: Tensor, first: int, known: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """See ``_Work``."""
        settings, size, batch = self.parts.settings, part_BHW.shape[0], self.lattice_pass.batch
        cells_BK = None if self.cells_BK is None else self.cells_BK[first : first + size]
        flows = launch(part_BHW, settings.lattice, settings, cells_BK=cells_BK, first=first)
        rows = flows.index_N.shape[0]
        each = rows // size
        child_R = _child_numbers(known[2], first, size, batch, each)
        if child_R.shape[0]:
            flows = join([flows, blank(flows, child_R)])
        number_N = flows.index_N
        k_N, parent_N, born_N = (one[number_N] for one in known)
        of_child_N = rows + torch.searchsorted(child_R, parent_N)
        parent_N = torch.where(parent_N < batch * each, parent_N - first * each, of_child_N)
        last_N = born_N + k_N
        lattice_pass = self.lattice_pass._replace(batch=size)
        noise_3 = sigma_3(settings, lattice_pass, part_BHW.device)
        # The one number that is read for each chunk, beside the count of its children.
        for t in range(int(last_N.max()) + 1):
            before_N3 = flows.p_N3
            moves_N = (t > born_N) & (t <= last_N)
            pushed = push(self.parts, lattice_pass, noise_3, flows, moves_N, t)
            flows = flows._replace(p_N3=pushed.p_N3, e_N1=pushed.e_N1, h_LNC=pushed.h_LNC)
            if child_R.shape[0]:
                flows = add_children(flows, before_N3, parent_N, born_N == t, t)
        return (flows.p_N3, flows.e_N1), [grad.index_select(0, number_N) for grad in grads]


def _child_numbers(born_N: Tensor, first: int, size: int, batch: int, each: int) -> Tensor:
    """Numbers of the children that these samples had."""
    slots = born_N.shape[0] // batch - each
    begin = batch * each + first * slots
    return begin + (born_N[begin : begin + size * slots] >= 0).nonzero()[:, 0]


def _plus(total: Tensor | None, more: Tensor | None) -> Tensor | None:
    if total is None or more is None:
        return more if total is None else total
    return total + more


def _same_autocast(state: tuple[str, torch.dtype, bool]) -> torch.autocast:
    """The first pass's autocast, without its cache: that must not outlive a graph."""
    kind, dtype, enabled = state
    return torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False)
