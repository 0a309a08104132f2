"""The flow loop in plain PyTorch: from a surface, through the lattice, to a surface.

B batch, K first flows of a sample, N rows of flows, R rows of children, C carrier width, L layers.

This is dense mode, and what every other mode is compared with: all rows are computed in every
step, in shapes that never change. The host reads nothing (but, where convergence is on, one flag
now and then, late), so that a pass can be captured as one graph. Best for small lattices and where
few flows leave early. Where flows can have children, all rows they may once need are computed from
the first step on.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .convergence import EarlyStop
from .ending import Finished, Tally, count, finish
from .flows import Flows, blank, join, launch, pick_cells, slots_for_children
from .settings import FlowSettings
from .spawn import children, place_children
from .stepping import LatticePass, Parts, add_children, advance, sigma_3

__all__ = ["RunSteps", "run", "run_steps"]

RunSteps = Callable[[Parts, LatticePass, Flows], tuple[Flows, Tally]]
"""A loop over lattice steps: from launched flows to where they are at its end."""


def run(
    parts: Parts,
    lattice_pass: LatticePass,
    surface_BHW: Tensor,
    *,
    loop: RunSteps | None = None,
) -> Finished:
    """Send the energies of a surface through the lattice.

    Args:
        parts: neuron, carrier and the rest.
        lattice_pass: what holds for the pass.
        surface_BHW: energies.
        loop: another loop than ``run_steps``.
    """
    settings = parts.settings
    cells_BK = pick_cells(surface_BHW, settings)
    flows = launch(surface_BHW, settings.lattice, settings, cells_BK=cells_BK)
    first = flows.index_N.shape[0]
    flows, tally = (loop or run_steps)(parts, lattice_pass, flows)
    return finish(flows, tally, settings, lattice_pass.batch, first)


def run_steps(
    parts: Parts,
    lattice_pass: LatticePass,
    flows: Flows,
    *,
    visit: Callable[[int, Flows], None] | None = None,
) -> tuple[Flows, Tally]:
    """Take every step with every row.

    Args:
        parts: neuron, carrier and the rest.
        lattice_pass: what holds for the pass.
        flows: from ``launch``.
        visit: shown the flows before the first step (0) and after each; for pictures.
    """
    settings = parts.settings
    device, first = flows.p_N3.device, flows.index_N.shape[0]
    slots = slots_for_children(
        lattice_pass.batch, first // lattice_pass.batch, lattice_pass.steps, settings
    )
    if slots:
        index_R = torch.arange(first, first + lattice_pass.batch * slots, device=device)
        flows = join([flows, blank(flows, index_R)])
    tally, early_stop = Tally.zero(device), EarlyStop(settings.convergence, device)
    used_B = torch.zeros(lattice_pass.batch, dtype=torch.long, device=device)
    noise_3 = sigma_3(settings, lattice_pass, device)
    if visit is not None:
        visit(0, flows)
    for t in range(lattice_pass.steps):
        stopped, leave = early_stop.check(t, tally.done, tally.spawned + first, flows.alive_N.sum())
        if leave:
            break
        before_N3 = flows.p_N3
        flows, step = advance(parts, lattice_pass, noise_3, flows, flows.alive_N & ~stopped, t)
        spawned: Tensor | int = 0
        if slots:
            former_B = used_B
            flows, used_B = _spawn(
                flows, before_N3, step.distance_N, used_B, first, slots, t, settings.flows
            )
            spawned = (used_B - former_B).sum()
        tally = count(tally, step, spawned, stopped)
        if visit is not None:
            visit(t + 1, flows)
    return flows, tally


def _spawn(
    flows: Flows,
    before_N3: Tensor,
    distance_N: Tensor,
    used_B: Tensor,
    first: int,
    slots: int,
    t: int,
    settings: FlowSettings,
) -> tuple[Flows, Tensor]:
    count_N = children(distance_N, flows.alive_N, settings.spawn_threshold, settings.spawn_most)
    placed = place_children(
        distance_N, count_N, flows.sample_N, used_B, slots=slots, most=settings.spawn_most
    )
    none_K = torch.zeros(first, dtype=torch.long, device=used_B.device)
    parent_N = torch.cat((none_K, placed.parent_R))
    born_N = torch.cat((none_K.bool(), placed.born_R))
    return add_children(flows, before_N3, parent_N, born_N, t), placed.used_B
