"""One lattice step, the same in every mode, and what holds for all steps of a pass.

B batch, N rows of flows, C carrier width, L layers, o width of the neuron's output.

Nothing here reads a number back to the host, and no shape depends on one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .carrier import Carrier
from .coordinates import noise_at, noise_factors_3
from .coupling import Field
from .flows import Flows
from .movement import move
from .neuron import Neuron
from .noise import Key, normal_N3
from .settings import ModelSettings

__all__ = [
    "FlowStep",
    "LatticePass",
    "Parts",
    "Pushed",
    "add_children",
    "advance",
    "push",
    "sigma_3",
    "with_drift",
]


class Parts(NamedTuple):
    """What moves the flows: the networks they share, and the settings."""

    neuron: Neuron
    carrier: Carrier
    field: Field | None
    settings: ModelSettings

    def modules(self) -> list[torch.nn.Module]:
        """Those that learn."""
        return [self.neuron, self.carrier, *([self.field] if self.field is not None else [])]

    def parameters(self) -> list[torch.nn.Parameter]:
        """All that is learned in them."""
        return [parameter for module in self.modules() for parameter in module.parameters()]


class LatticePass(NamedTuple):
    """What holds for all steps of one pass through the lattice; every mode is given one.

    Attributes:
        batch: samples.
        steps: T, at most so many.
        key: names the noise.
        training: with noise.
        scale: of displacements, see ``scale_at``.
    """

    batch: int
    steps: int
    key: Key
    training: bool
    scale: float | Tensor


class Pushed(NamedTuple):
    """Where the flows are after a step, before it is decided what becomes of them."""

    p_N3: Tensor
    e_N1: Tensor
    h_LNC: Tensor
    u_No: Tensor  # zero in rows that were not moved
    delta_N3: Tensor  # with drift, without noise
    exit_N: Tensor
    distance_N: Tensor
    guarded: Tensor


class FlowStep(NamedTuple):
    """What a step did, beside the flows themselves; nothing of it carries a gradient."""

    distance_N: Tensor  # how far each flow has come that is alive after it, 0 for the others
    left: Tensor  # how many have reached a face
    died: Tensor
    guarded: Tensor
    input_most: Tensor  # largest absolute input of the GRU
    state_most: Tensor


def sigma_3(
    settings: ModelSettings, lattice_pass: LatticePass, device: torch.device
) -> Tensor | None:
    """Standard deviation of the noise on each axis, in normalised units; None: no noise."""
    if not lattice_pass.training:
        return None
    flows, step = settings.flows, lattice_pass.key.step
    cell_3 = noise_factors_3(settings.lattice, on_z=flows.noise_on_z, device=device)
    if isinstance(step, Tensor):
        share = (1 - step.to(cell_3) / flows.noise_anneal).clamp(min=0.0)
        return cell_3 * flows.noise_cells * share
    cells = noise_at(step, flows)
    return cell_3 * cells if cells > 0 else None


def push(
    parts: Parts,
    lattice_pass: LatticePass,
    noise_3: Tensor | None,
    flows: Flows,
    active_N: Tensor,
    t: int,
) -> Pushed:
    """Let the neuron answer, the carrier step, and the flows move; the others stay as they are.

    Args:
        parts: neuron, carrier and the rest.
        lattice_pass: what holds for the pass.
        noise_3: from ``sigma_3``.
        flows: before the step.
        active_N: who moves.
        t: the lattice step.
    """
    field_N1 = None if parts.field is None else parts.field(flows, active_N, lattice_pass.batch)
    active_N1 = active_N[:, None]
    # Rows at rest are computed too, for the sake of fixed shapes; zeros keep them out of the
    # counts, and a gradient out of them.
    u_No = parts.neuron(flows.p_N3, flows.e_N1, field_N1).where(active_N1, 0.0)
    e_N1 = flows.e_N1.where(active_N1, 0.0)
    e_N1, delta_N3, h_LNC, guarded = parts.carrier.step(u_No, e_N1, flows.h_LNC, lattice_pass.scale)
    delta_N3 = with_drift(delta_N3, parts.settings.z_drift)
    noise_N3 = None if noise_3 is None else normal_N3(lattice_pass.key, flows.index_N, t) * noise_3
    moved = move(
        flows.p_N3, delta_N3, noise_N3, reflect=parts.settings.flows.reflect, alive_N=active_N
    )
    return Pushed(
        p_N3=moved.p_N3,
        e_N1=torch.where(active_N1, e_N1, flows.e_N1),
        h_LNC=h_LNC,
        u_No=u_No,
        delta_N3=delta_N3,
        exit_N=moved.exit_N,
        distance_N=moved.distance_N,
        guarded=guarded,
    )


def advance(
    parts: Parts,
    lattice_pass: LatticePass,
    noise_3: Tensor | None,
    flows: Flows,
    active_N: Tensor,
    t: int,
) -> tuple[Flows, FlowStep]:
    """One step with its exits and deaths, see ``push``; births are up to the mode."""
    pushed = push(parts, lattice_pass, noise_3, flows, active_N, t)
    exit_N = torch.where(active_N, pushed.exit_N.to(flows.exit_N.dtype), 0)
    left_N = exit_N > 0
    died_N = torch.zeros_like(left_N)
    if parts.settings.flows.filter_below is not None:
        short_N = pushed.delta_N3.detach().norm(dim=-1) < parts.settings.flows.filter_below
        died_N = active_N & ~left_N & short_N
    going_N = active_N & ~left_N & ~died_N
    u_No, h_LNC = pushed.u_No.detach(), pushed.h_LNC.detach()
    e_N = flows.e_N1.detach()[:, 0].where(active_N, 0.0)
    step = FlowStep(
        distance_N=pushed.distance_N.detach().where(going_N, 0.0),
        left=left_N.sum(),
        died=died_N.sum(),
        guarded=pushed.guarded,
        input_most=torch.maximum(u_No.abs().amax().float(), e_N.abs().amax()),
        state_most=h_LNC.abs().amax((0, 2)).float().where(active_N, 0.0).amax(),
    )
    after = flows._replace(
        p_N3=pushed.p_N3,
        e_N1=pushed.e_N1,
        h_LNC=pushed.h_LNC,
        k_N=flows.k_N + active_N,
        alive_N=flows.alive_N & ~left_N & ~died_N,
        exit_N=torch.where(left_N, exit_N, flows.exit_N),
    )
    return after, step


def add_children(
    flows: Flows, before_N3: Tensor, parent_row_N: Tensor, born_N: Tensor, t: int
) -> Flows:
    """Put children into rows that are free.

    A child begins where its parent stood before the step, with what the parent has after it.

    Args:
        flows: after the step.
        before_N3: positions before it.
        parent_row_N: the row of each child's parent; anything elsewhere.
        born_N: which rows get a child.
        t: the lattice step.
    """
    own_N = torch.arange(born_N.shape[0], device=born_N.device)
    row_N = torch.where(born_N, parent_row_N, own_N)
    born_N1 = born_N[:, None]
    return flows._replace(
        p_N3=torch.where(born_N1, before_N3.index_select(0, row_N), flows.p_N3),
        e_N1=flows.e_N1.index_select(0, row_N),
        h_LNC=flows.h_LNC.index_select(1, row_N),
        alive_N=flows.alive_N | born_N,
        sample_N=flows.sample_N.index_select(0, row_N),
        parent_N=torch.where(born_N, flows.index_N.index_select(0, row_N), flows.parent_N),
        born_N=torch.where(born_N, t, flows.born_N),
    )


def with_drift(delta_N3: Tensor, drift: float) -> Tensor:
    """Outwards on z, to the side the flow tends to; upwards where it tends to none."""
    if drift == 0.0:
        return delta_N3
    xy_N2, z_N1 = delta_N3.split((2, 1), dim=-1)
    outward_N1 = torch.where(z_N1.detach() >= 0, drift, -drift)
    return torch.cat((xy_N2, z_N1 + outward_N1), dim=-1)
