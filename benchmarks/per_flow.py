"""The slow reference of the energy-flow benchmark: every flow by itself, one after the other.

It does what the lattice's specification says in the way its predecessor did it: an object for each
flow, tensors of one row, numbers read by the host to decide about exits, a dictionary of cells. The
networks are ours, so that weights, sizes and gradients are the same. For small sizes only.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from holdfast_models.energy_flow.model.coordinates import start_S3
from holdfast_models.energy_flow.model.lattice import Core


@dataclasses.dataclass
class Flow:
    """One of them."""

    sample: int
    p: Tensor  # [1, 3]
    e: Tensor  # [1, 1]
    h: Tensor  # [L, 1, C]
    steps: int = 0


def per_flow(core: Core, surface_BHW: Tensor, scale: float = 1.0) -> tuple[Tensor, int]:
    """The collected surface ``[B, S]`` without noise and children, and steps of all flows together.

    Args:
        core: whose networks and settings.
        surface_BHW: energies.
        scale: of displacements.
    """
    settings = core.settings
    carrier, lattice = settings.carrier, settings.lattice
    batch, start = surface_BHW.shape[0], start_S3(lattice)
    flows = [
        Flow(sample, start[cell : cell + 1], surface_BHW[sample].reshape(-1, 1)[cell : cell + 1],
             torch.zeros(carrier.layers, 1, carrier.hidden))
        for sample in range(batch)
        for cell in range(lattice.cells)
    ]  # fmt: skip
    ended: list[Flow] = []
    alive, moved = list(flows), 0
    for _ in range(settings.steps):
        going: list[Flow] = []
        for flow in alive:
            u = core.neuron(flow.p, flow.e)
            flow.e, delta, flow.h, _ = core.carrier.step(u, flow.e, flow.h, scale)
            drift = settings.z_drift if float(delta.detach()[0, 2]) >= 0 else -settings.z_drift
            x, y, z = (flow.p + delta)[0].unbind()
            z = z + drift
            flow.p = torch.stack((_wall(x), _wall(y), z.clamp(-1, 1)))[None]
            flow.steps += 1
            moved += 1
            (ended if abs(float(z.detach())) >= 1 else going).append(flow)
        alive = going
    return _collected(ended + alive, batch, lattice.width, lattice.height), moved


def _wall(x: Tensor) -> Tensor:
    """Reflected at a side wall."""
    if float(x.detach()) < -1:
        x = -2 - x
    elif float(x.detach()) > 1:
        x = 2 - x
    return x.clamp(-1, 1)


def _collected(flows: list[Flow], batch: int, width: int, height: int) -> Tensor:
    cells: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
    for flow in flows:
        px, py, pz = flow.p[0].unbind()
        near = torch.minimum((pz + 1).abs(), (pz - 1).abs())
        energy = flow.e[0, 0]
        weight = (energy.abs() / (1 + near) * (1 + 0.1 * flow.steps)).exp()
        x, y = (px + 1) / 2 * (width - 1), (py + 1) / 2 * (height - 1)
        left = min(max(math.floor(float(x.detach())), 0), width - 2)
        low = min(max(math.floor(float(y.detach())), 0), height - 2)
        x, y = (x - left).clamp(0, 1), (y - low).clamp(0, 1)
        for dx, dy, share in (
            (0, 0, (1 - x) * (1 - y)), (1, 0, x * (1 - y)), (0, 1, (1 - x) * y), (1, 1, x * y)
        ):  # fmt: skip
            place = (flow.sample, (low + dy) * width + left + dx)
            cells.setdefault(place, []).append((weight * share, energy))
    rows = [[torch.zeros(())] * (width * height) for _ in range(batch)]
    for (sample, cell), parts in cells.items():
        total = torch.stack([weight for weight, _ in parts]).sum()
        if float(total.detach()) != 0:
            sums = torch.stack([weight * energy for weight, energy in parts]).sum()
            rows[sample][cell] = sums / total
    return torch.stack([torch.stack(row) for row in rows])
