"""One way into all modes: which of them a batch takes, and the pass itself.

B batch, W and H the sides of the surface.
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.training import Graphs, free_memory

from ..kernels.check import fault
from ..kernels.plan import plan_for
from ..kernels.support import unsupported, unsupported_by_kernels
from ..model import loop
from ..model.ending import Finished
from ..model.stepping import LatticePass, Parts
from . import chunked, compact, fused, graph
from .memory import first_flows, pass_bytes, rows

__all__ = ["SHARE", "Fits", "carrier_itemsize", "choose", "preferred", "run", "why_not_fused"]

SHARE = 0.8
"""Of the free memory that a pass may take before it is computed in chunks."""


Fits = dict[tuple[object, ...], bool]
"""Which sizes of a batch fit into the memory there was when it was first asked."""


def run(
    parts: Parts, lattice_pass: LatticePass, surface_BHW: Tensor, graphs: Graphs, fits: Fits
) -> Finished:
    """Send the energies of a surface through the lattice, by the mode that fits.

    Args:
        parts: neuron, carrier and the rest.
        lattice_pass: what holds for the pass.
        surface_BHW: energies.
        graphs: replays passes of fused mode, where ``flows.graph`` is on.
        fits: what is known of memory.
    """
    mode = choose(parts, surface_BHW, fits)
    if mode == "dense":
        return loop.run(parts, lattice_pass, surface_BHW)
    if mode == "compact":
        return loop.run(parts, lattice_pass, surface_BHW, loop=compact.run_steps)
    if mode == "chunked":
        return chunked.run(parts, lattice_pass, surface_BHW)
    prepared = fused.prepare(parts, lattice_pass, surface_BHW)
    if parts.settings.flows.graph:
        return graph.run(graphs, prepared, surface_BHW)
    return fused.run_pass(prepared, surface_BHW)


def choose(parts: Parts, surface_BHW: Tensor, fits: Fits) -> str:
    """The mode that was set, or the best one; chunked where a backward needs too much memory.

    Too much is more than ``flows.activation_budget_gb``. Where that is not set, and nor is the
    mode, it is most of what the device had free when a batch of this size came for the first time.
    """
    flows, batch = parts.settings.flows, surface_BHW.shape[0]
    mode = preferred(parts, surface_BHW)
    if not torch.is_grad_enabled():
        if mode != "chunked":
            return mode
        # There is nothing to compute twice for.
        return "compact" if why_not_fused(parts, surface_BHW) else "fused"
    if flows.activation_budget_gb is None and flows.mode != "auto":
        return mode
    itemsize = carrier_itemsize(surface_BHW.device)
    need = pass_bytes(parts, batch, itemsize, fused=mode == "fused", chunk=None)
    if flows.activation_budget_gb is not None:
        return mode if need <= flows.activation_budget_gb * 1e9 else "chunked"
    key = (tuple(surface_BHW.shape), itemsize, surface_BHW.device)
    if key not in fits:
        fits[key] = need <= SHARE * free_memory(surface_BHW.device)
    return mode if fits[key] else "chunked"


def preferred(parts: Parts, surface_BHW: Tensor) -> str:
    """The mode that was set, or the fastest, whatever memory it takes."""
    settings, batch = parts.settings, surface_BHW.shape[0]
    if settings.flows.mode != "auto":
        return settings.flows.mode
    if why_not_fused(parts, surface_BHW) is None:
        return "fused"
    return "compact" if rows(settings, batch) > first_flows(settings, batch) else "dense"


def carrier_itemsize(device: torch.device) -> int:
    """Bytes of a number in the carrier: fewer under autocast."""
    return 2 if torch.is_autocast_enabled(device.type) else 4


def why_not_fused(parts: Parts, surface_BHW: Tensor) -> str | None:
    """Why auto would not take fused mode for such a batch; None: it would."""
    settings, device = parts.settings, surface_BHW.device
    if torch.compiler.is_compiling():
        return "the model is compiled"
    why = unsupported(settings, surface_BHW.shape[0]) or unsupported_by_kernels(settings, device)
    if why is not None:
        return why
    on = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if on else torch.float32
    return fault(plan_for(parts, settings.steps), dtype, device)
