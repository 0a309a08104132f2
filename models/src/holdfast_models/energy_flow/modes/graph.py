"""The fused loop as a CUDA graph; see ``Graphs``.

B batch, N flows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.training import Graphs

from ..model.ending import Finished, Stats
from ..model.noise import Key
from .fused import FusedPass, run_pass

__all__ = ["run"]

# Flows from which the device works longer on a step than the host on its launches: leaving out the
# steps after an early stop, which a graph cannot, saves more than a graph does.
_STOPPING = 100_000


class _Results(NamedTuple):
    """What a captured pass leaves, in few tensors: each is copied after every replay."""

    surface_BS: Tensor
    e_N1: Tensor
    p_N3: Tensor
    filled_BS: Tensor
    k_N: Tensor
    exit_N: Tensor
    projected_N: Tensor
    whole: Tensor  # the statistics that are whole numbers
    real: Tensor  # those that are not
    sample_N: Tensor
    parent_N: Tensor
    born_N: Tensor


_CARRIES = 3  # of the results carry gradients
_WHOLE = ("made", "done", "projected", "spawned", "died", "steps", "guarded")
_REAL = tuple(name for name in Stats._fields if name not in _WHOLE)


def run(graphs: Graphs, prepared: FusedPass, surface_BHW: Tensor) -> Finished:
    """Send a surface through the lattice, by a graph where that can be done."""
    if (why := _stops(prepared, surface_BHW)) is not None:
        graphs.reason = why
        return run_pass(prepared, surface_BHW)
    lattice_pass, parts = prepared.lattice_pass, prepared.parts
    key = (prepared.plan, prepared.dtype, lattice_pass.key.seed, lattice_pass.training)

    def run_captured(surface_BHW: Tensor, step: Tensor, scale: Tensor) -> _Results:
        now = lattice_pass._replace(key=Key(lattice_pass.key.seed, step), scale=scale)
        return _packed(run_pass(prepared._replace(lattice_pass=now), surface_BHW))

    inputs = (surface_BHW, *_tensors(prepared, surface_BHW.device))
    found = graphs.run(run_captured, inputs, parts.modules(), carries=_CARRIES, key=key)
    return run_pass(prepared, surface_BHW) if found is None else _unpacked(_Results(*found))


def _tensors(prepared: FusedPass, device: torch.device) -> tuple[Tensor, Tensor]:
    step, scale = prepared.lattice_pass.key.step, prepared.lattice_pass.scale
    if not isinstance(step, Tensor):
        step = torch.full((), step, device=device)
    if not isinstance(scale, Tensor):
        scale = torch.full((1,), scale, device=device)
    return step, scale


def _stops(prepared: FusedPass, surface_BHW: Tensor) -> str | None:
    """Whether a pass should rather end early."""
    rules, settings = prepared.plan.convergence, prepared.parts.settings
    batch = surface_BHW.shape[0]
    flows = min(surface_BHW.numel(), settings.flows.capacity // batch * batch)
    if rules.on and flows >= _STOPPING and prepared.plan.steps > rules.least_steps + 1:
        return "its steps after an early stop are left out"
    return None


def _packed(out: Finished) -> _Results:
    return _Results(
        surface_BS=out.surface_BS,
        e_N1=out.e_N1,
        p_N3=out.p_N3,
        filled_BS=out.filled_BS,
        k_N=out.k_N,
        exit_N=out.exit_N,
        projected_N=out.projected_N,
        whole=torch.stack([getattr(out.stats, name).long() for name in _WHOLE]),
        real=torch.stack([getattr(out.stats, name).float() for name in _REAL]),
        sample_N=out.sample_N,
        parent_N=out.parent_N,
        born_N=out.born_N,
    )


def _unpacked(out: _Results) -> Finished:
    names, numbers = (*_WHOLE, *_REAL), (*out.whole.unbind(), *out.real.unbind())
    return Finished(
        surface_BS=out.surface_BS,
        filled_BS=out.filled_BS,
        e_N1=out.e_N1,
        p_N3=out.p_N3,
        k_N=out.k_N,
        exit_N=out.exit_N,
        projected_N=out.projected_N,
        sample_N=out.sample_N,
        parent_N=out.parent_N,
        born_N=out.born_N,
        stats=Stats(**dict(zip(names, numbers, strict=True))),
    )
