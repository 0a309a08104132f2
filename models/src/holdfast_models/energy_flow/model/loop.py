"""Dense mode: every row is computed in every step, in shapes that never change.

B batch, K first flows of a sample, N rows of flows, R rows of children, C carrier width, L layers.

The host reads nothing (but, where convergence is on, one flag now and then, late), so that a run
can be captured as one graph. Best for small lattices and where few flows leave early. Where flows
can have children, all rows they may once need are computed from the first step on.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .ending import Brake, Finished, Tally, count, finish
from .flows import Flows, blank, join, launch, pick_cells, slots_for_children
from .noise import Key
from .settings import FlowSettings
from .spawn import children, place_children
from .stepping import Parts, Ride, advance, bear, plan_ride

__all__ = ["roll", "run"]


def run(
    parts: Parts,
    surface_BHW: Tensor,
    *,
    steps: int,
    key: Key,
    training: bool,
    scale: float | Tensor,
    visit: Callable[[int, Flows], None] | None = None,
) -> Finished:
    """Send the energies of a surface through the lattice.

    Args:
        parts: neuron, carrier and the rest.
        surface_BHW: energies.
        steps: T, at most so many.
        key: names the noise.
        training: with noise.
        scale: of displacements, see ``scale_at``.
        visit: shown the flows before the first step (0) and after each; for pictures.
    """
    settings = parts.settings
    ride = plan_ride(settings, surface_BHW, steps=steps, key=key, training=training, scale=scale)
    cells_BK = pick_cells(surface_BHW, settings)
    flows = launch(surface_BHW, settings.lattice, settings, cells_BK=cells_BK)
    first = flows.index_N.shape[0]
    flows, tally = roll(parts, ride, flows, visit=visit)
    return finish(flows, tally, settings, ride.batch, first)


def roll(
    parts: Parts,
    ride: Ride,
    flows: Flows,
    *,
    visit: Callable[[int, Flows], None] | None = None,
) -> tuple[Flows, Tally]:
    """The loop itself: from launched flows to where they are at its end."""
    settings = parts.settings
    device, first = flows.p_N3.device, flows.index_N.shape[0]
    slots = slots_for_children(ride.batch, first // ride.batch, ride.steps, settings)
    if slots:
        index_R = torch.arange(first, first + ride.batch * slots, device=device)
        flows = join([flows, blank(flows, index_R)])
    tally, brake = Tally.zero(device), Brake(settings, device)
    used_B = torch.zeros(ride.batch, dtype=torch.long, device=device)
    if visit is not None:
        visit(0, flows)
    for t in range(ride.steps):
        stopped, leave = brake.check(t, tally, flows.alive_N.sum(), first)
        if leave:
            break
        before_N3 = flows.p_N3
        flows, step = advance(parts, ride, flows, flows.alive_N & ~stopped, t)
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
    return bear(flows, before_N3, parent_N, born_N, t), placed.used_B
