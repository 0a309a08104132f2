"""Fused mode: the result of ``model.loop.run``, by the loop of ``kernels``.

B batch, K first flows of a sample, N = B·K flows, T lattice steps. No row for children, no
coupling, no filter (see ``support``). Where an answer of the neuron is cut off (``guarded``), it
cuts the neuron's last hidden layer instead of its answer: the only place where values differ.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from holdfast import HoldfastError

from ..kernels.loop import Ended, LoopStart, run_loop
from ..kernels.ops import Ops, ops_for, references
from ..kernels.plan import BlockSizes, KernelPlan, plan_for
from ..kernels.support import unsupported, unsupported_by_kernels
from ..kernels.weights import fold
from ..model.collection import Collected
from ..model.ending import Finished, Tally, finish
from ..model.flows import Flows, launch, pick_cells
from ..model.noise import Key, streams_T
from ..model.stepping import LatticePass, Parts, sigma_3

__all__ = ["MOST_STEPS", "FusedPass", "ended_flows", "finished", "prepare", "run_pass"]

MOST_STEPS = 180
"""Lattice steps up to which the collection's kernel is exact."""


class FusedPass(NamedTuple):
    """All that holds for one pass, but the surface."""

    parts: Parts
    lattice_pass: LatticePass  # its scale is a tensor of one number
    plan: KernelPlan
    dtype: torch.dtype  # of states and products
    ops: Ops


def prepare(
    parts: Parts, lattice_pass: LatticePass, surface_BHW: Tensor, ops: Ops | None = None
) -> FusedPass:
    """What the arguments of a mode come to.

    Args:
        parts: neuron, carrier and settings.
        lattice_pass: what holds for the pass.
        surface_BHW: of the batch; only its place is looked at.
        ops: other kernels than those that fit the device.
    """
    device = surface_BHW.device
    why = unsupported(parts.settings, lattice_pass.batch)
    if why is not None:
        raise HoldfastError(f"fused mode cannot compute this: {why}; set flows.mode=auto")
    on = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if on else torch.float32
    if ops is None:
        # A kernel that cannot do it has a plain form that can.
        able = unsupported_by_kernels(parts.settings, device) is None
        ops = ops_for(device if able else torch.device("cpu"))
    by_kernels = device.type == "cuda" and ops is not references()
    plan = plan_for(parts, lattice_pass.steps, BlockSizes() if by_kernels else None)
    key, scale = lattice_pass.key, lattice_pass.scale
    if device.type == "cuda" and not isinstance(key.step, Tensor):
        # On the device, so that a captured pass draws the same numbers.
        key = Key(key.seed, torch.full((), key.step, device=device))
    if not isinstance(scale, Tensor):
        scale = torch.full((1,), scale, device=device)
    return FusedPass(
        parts, lattice_pass._replace(key=key, scale=scale.reshape(1)), plan, dtype, ops
    )


def run_pass(prepared: FusedPass, surface_BHW: Tensor) -> Finished:
    """The whole way, from a surface to a surface."""
    with torch.autocast(surface_BHW.device.type, enabled=False):
        cells_BK = pick_cells(surface_BHW, prepared.parts.settings)
        flows, ended = ended_flows(prepared, surface_BHW, cells_BK)
        return finished(prepared, flows, ended, surface_BHW.shape[0])


def ended_flows(
    prepared: FusedPass,
    surface_BHW: Tensor,
    cells_BK: Tensor | None,
    *,
    first: int = 0,
    k_N: Tensor | None = None,
) -> tuple[Flows, Ended]:
    """Launch the flows and run the loop; outside of autocast.

    Args:
        prepared: what holds for the run.
        surface_BHW: of these samples.
        cells_BK: the cells that get a flow; None: all.
        first: number of the first sample, where this is a part of a batch.
        k_N: how many steps each flow takes, where an earlier pass has decided.
    """
    parts, plan, device = prepared.parts, prepared.plan, surface_BHW.device
    noise_3 = sigma_3(parts.settings, prepared.lattice_pass, device)
    flows = launch(
        surface_BHW, parts.settings.lattice, parts.settings, cells_BK=cells_BK, first=first,
        states=False,
    )  # fmt: skip
    rows = flows.p_N3.shape[0]
    noise_T3N = None
    if noise_3 is not None:
        begin = first * (rows // surface_BHW.shape[0])
        streams = streams_T(prepared.lattice_pass.key, plan.steps, device)
        noise_T3N = prepared.ops.noise(streams, noise_3, begin, rows)
    scale = prepared.lattice_pass.scale
    assert isinstance(scale, Tensor)
    start = LoopStart(flows.p_N3.t(), noise_T3N, scale, k_N)
    ended = run_loop(
        plan, fold(parts, plan), flows.e_N1[:, 0], start, dtype=prepared.dtype, ops=prepared.ops
    )
    return flows, ended


def finished(prepared: FusedPass, flows: Flows, ended: Ended, batch: int) -> Finished:
    """Collect what the loop left.

    Args:
        prepared: what holds for the run.
        flows: as they were launched.
        ended: as they are now.
        batch: B.
    """
    settings = prepared.parts.settings
    flows = flows._replace(
        p_N3=ended.p_3N.t(),
        e_N1=ended.e_N[:, None],
        k_N=ended.k_N.long(),
        alive_N=ended.alive_N,
        exit_N=ended.exit_N.long(),
    )
    none = torch.zeros((), dtype=torch.long, device=ended.e_N.device)
    tally = Tally(
        done=ended.done,
        died=none,
        spawned=none,
        steps=ended.steps,
        guarded=ended.guarded,
        input_most=ended.input_most,
        state_most=ended.state_most,
    )

    def gather(flows: Flows, got_N: Tensor) -> Collected:
        from ..kernels.collect_kernels import collect

        return collect(
            flows.e_N1[:, 0], flows.p_N3, flows.k_N, flows.sample_N, got_N,
            settings.lattice, batch,
        )  # fmt: skip

    able = prepared.plan.blocks is not None and prepared.plan.steps <= MOST_STEPS
    able = able and settings.flows.splat == "bilinear" and not settings.flows.deterministic
    first = flows.index_N.shape[0]
    return finish(flows, tally, settings, batch, first, gather=gather if able else None)
