"""Flows as a struct of tensors: how they begin, how many there can be, how they multiply.

B batch, K first flows of a sample, S cells, N rows of flows, R rows to take, C carrier width,
L layers.

A flow has a number for life, its ``index_N``: the first generation counts sample by sample, cell by
cell (``b * K + i``), the slots of children go on from there, again sample by sample (see
``spawn``). The number keys the noise and says where the flow's end is kept, so it does not matter
in which row it is computed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast import HoldfastError

from .carrier import MOST_MOVE
from .coordinates import start_S3
from .settings import LatticeSettings, ModelSettings

__all__ = [
    "NO_FLOW",
    "Flows",
    "blank",
    "has_spawn",
    "join",
    "launch",
    "pick_cells",
    "slots_for_children",
    "take",
]

NO_FLOW = -1
"""The parent of a first flow, and the birth of one that was there before the first step."""

_MOST_NORMAL = 7.0
"""No normal number made of 32 random bits is larger (sqrt(2 * 32 * ln 2) is 6.7)."""


class Flows(NamedTuple):
    """All flows of a batch at one moment; replaced, never written to.

    Rows that no flow has taken yet are not alive, and have neither exit nor birth.
    """

    p_N3: Tensor  # position, normalised
    e_N1: Tensor  # energy
    h_LNC: Tensor  # state of the GRU; means nothing in rows that are not alive
    k_N: Tensor  # steps taken
    alive_N: Tensor
    sample_N: Tensor
    index_N: Tensor  # number for life
    parent_N: Tensor  # number of the parent
    born_N: Tensor  # lattice step at whose end it was born
    exit_N: Tensor  # 0 none, 1 the face z = 0, 2 the face z = depth


def launch(
    surface_BHW: Tensor,
    lattice: LatticeSettings,
    settings: ModelSettings,
    *,
    cells_BK: Tensor | None = None,
    first: int = 0,
    states: bool = True,
) -> Flows:
    """One flow for each cell, in the middle plane; gradients reach the surface through ``e_N1``.

    Args:
        surface_BHW: energies.
        lattice: sizes of the box.
        settings: of the whole model.
        cells_BK: the cells that get a flow, from ``pick_cells``; None: all of them.
        first: number of the first sample, where this is a part of a batch.
        states: of the GRU; without them their width is 0.
    """
    batch, device = surface_BHW.shape[0], surface_BHW.device
    e_BK = surface_BHW.reshape(batch, -1).float()
    p_K3 = start_S3(lattice, device)
    if cells_BK is None:
        p_BK3 = p_K3.expand(batch, -1, -1)
    else:
        e_BK, p_BK3 = e_BK.gather(1, cells_BK), p_K3[cells_BK]
    each = e_BK.shape[1]
    rows = batch * each
    index_N = torch.arange(first * each, first * each + rows, device=device)
    carrier = settings.carrier
    wide = carrier.hidden if states else 0
    h_LNC = torch.zeros(carrier.layers, rows, wide, device=device, dtype=_state_dtype(surface_BHW))
    return Flows(
        p_N3=p_BK3.reshape(rows, 3),
        e_N1=e_BK.reshape(rows, 1),
        h_LNC=h_LNC,
        k_N=torch.zeros_like(index_N),
        alive_N=torch.ones_like(index_N, dtype=torch.bool),
        sample_N=index_N // each - first,
        index_N=index_N,
        parent_N=torch.full_like(index_N, NO_FLOW),
        born_N=torch.full_like(index_N, NO_FLOW),
        exit_N=torch.zeros_like(index_N),
    )


def pick_cells(surface_BHW: Tensor, settings: ModelSettings) -> Tensor | None:
    """The cells that get a flow where not all can, equally many of each sample, in their order.

    Returns:
        ``cells_BK``: those of largest absolute energy; None where there is room for all.

    Raises:
        HoldfastError: too many cells, and ``flows.overflow`` is "error"; or too many samples.
    """
    batch, cells = surface_BHW.shape[0], settings.lattice.cells
    try:
        settings.check_batch(batch)
    except ValueError as error:
        raise HoldfastError(str(error)) from error
    each = settings.flows.capacity // batch
    if each >= cells:
        return None
    return surface_BHW.detach().reshape(batch, cells).abs().topk(each, dim=1).indices.sort(1).values


def has_spawn(settings: ModelSettings) -> bool:
    """Whether a flow can move far enough in one step to have a child at all.

    A child needs twice the threshold. With the displacement bounded this is known beforehand,
    and where it cannot happen no rows are kept for children and no counts are read for them.
    """
    flows, lattice = settings.flows, settings.lattice
    if flows.spawn_most == 0:
        return False
    noise = _MOST_NORMAL * flows.noise_cells
    sides = [MOST_MOVE + noise * 2 / (size - 1) for size in (lattice.width, lattice.height)]
    z = MOST_MOVE + settings.z_drift + (noise * 2 / lattice.depth if flows.noise_on_z else 0.0)
    # From wall to wall is 2 on each axis.
    most = math.sqrt(sum(min(length, 2.0) ** 2 for length in (*sides, z)))
    return most >= 2 * flows.spawn_threshold


def slots_for_children(batch: int, each: int, steps: int, settings: ModelSettings) -> int:
    """How many children a sample may have in so many steps, all generations together.

    Args:
        batch: samples, which share the capacity evenly.
        each: first flows of a sample.
        steps: of the lattice.
        settings: of the whole model.
    """
    if not has_spawn(settings):
        return 0
    room, born = settings.flows.capacity // batch - each, 0
    for _ in range(steps):
        born += (each + born) * settings.flows.spawn_most
        if born >= room:
            return room
    return born


def blank(flows: Flows, index_R: Tensor) -> Flows:
    """Rows that no flow has taken yet, to go with ``flows``."""
    rows = index_R.shape[0]
    return Flows(
        p_N3=flows.p_N3.new_zeros(rows, 3),
        e_N1=flows.e_N1.new_zeros(rows, 1),
        h_LNC=flows.h_LNC.new_zeros(flows.h_LNC.shape[0], rows, flows.h_LNC.shape[2]),
        k_N=torch.zeros_like(index_R),
        alive_N=torch.zeros_like(index_R, dtype=torch.bool),
        sample_N=torch.zeros_like(index_R),
        index_N=index_R,
        parent_N=torch.full_like(index_R, NO_FLOW),
        born_N=torch.full_like(index_R, NO_FLOW),
        exit_N=torch.zeros_like(index_R),
    )


def join(parts: list[Flows]) -> Flows:
    """The rows of several, one after the other."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(Flows._fields, zip(*parts, strict=True), strict=True)
    return Flows(*(torch.cat(column, dim=_rows_dim(name)) for name, column in columns))


def take(flows: Flows, row_R: Tensor) -> Flows:
    """These rows, in this order."""
    columns = zip(Flows._fields, flows, strict=True)
    return Flows(*(column.index_select(_rows_dim(name), row_R) for name, column in columns))


def _rows_dim(name: str) -> int:
    return 1 if name == "h_LNC" else 0


def _state_dtype(surface_BHW: Tensor) -> torch.dtype:
    """Under autocast the states are kept in its type: they are most of what is read and written."""
    kind = surface_BHW.device.type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return torch.float32
