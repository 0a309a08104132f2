"""How the energies of finished flows become one surface.

N flows, B batch, S cells of a surface, J = 1 or 4 cells that a flow touches, K = N * J,
X = B * S.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .coordinates import cells_N, denormalise
from .movement import INSIDE, Z0, ZD
from .settings import LatticeSettings

__all__ = ["Collected", "collect", "corners", "importance", "project"]

_MOST_EXPONENT = 30.0


class Collected(NamedTuple):
    """What arrived.

    Attributes:
        surface_BS: energies in fp32, 0 in cells that no flow reached.
        filled_BS: cells that a flow reached, bool.
    """

    surface_BS: Tensor
    filled_BS: Tensor


def project(p_N3: Tensor, alive_N: Tensor) -> Tensor:
    """The nearer face of flows that are alive when the loop ends; z0 in the middle.

    Positions stay: what is left of the way lowers the weight in ``collect``. Flows that are not
    alive get ``INSIDE``, which is 0, so that the result can be added to their exits.
    """
    return torch.where(alive_N, torch.where(p_N3[..., 2] > 0, ZD, Z0), INSIDE)


def collect(
    e_N: Tensor,
    p_N3: Tensor,
    k_N: Tensor,
    sample_N: Tensor,
    done_N: Tensor,
    lattice: LatticeSettings,
    batch: int,
    *,
    splat: Literal["bilinear", "nearest"] = "bilinear",
    deterministic: bool = False,
) -> Collected:
    """Gathers both faces on one surface: in each cell the softmax mean of what arrived there.

    Args:
        e_N: energies.
        p_N3: positions at the end.
        k_N: steps taken.
        sample_N: which sample a flow belongs to, 0 to ``batch - 1``.
        done_N: which flows count, bool; values of the others do not matter.
        lattice: whose surface.
        batch: B.
        splat: a flow goes to the four cells around it, which gives positions a gradient, or to
            the nearest one.
        deterministic: sums in an order that is always the same, sorted by cell.
    """
    # Replaced before anything is computed: what a flow that does not count holds may be NaN.
    e_N = torch.where(done_N, e_N.float(), 0.0)
    p_N3 = torch.where(done_N.unsqueeze(-1), p_N3.float(), 0.0)
    weight_N = importance(e_N, p_N3, k_N)
    if splat == "nearest":
        cell_NJ, share_NJ = _nearest(p_N3, lattice)
    else:
        cell_NJ, share_NJ = corners(p_N3, lattice)
    cells = batch * lattice.cells
    cell_NJ = sample_N.unsqueeze(-1) * lattice.cells + cell_NJ
    # Flows that do not count add zeros, and not all to one cell: such additions wait in a queue.
    spare_N = torch.arange(e_N.shape[0], device=e_N.device) % cells
    cell_NJ = torch.where(done_N.unsqueeze(-1), cell_NJ, spare_N.unsqueeze(-1))
    share_NJ = torch.where(done_N.unsqueeze(-1), share_NJ, 0.0)
    weight_NJ = weight_N.unsqueeze(-1).expand_as(share_NJ)
    part_NJ = share_NJ * _exp(weight_NJ, share_NJ, cell_NJ, cells)
    parts_2K = torch.stack(((part_NJ * e_N.unsqueeze(-1)).flatten(), part_NJ.flatten()))
    parts_2X = _sums(parts_2K, cell_NJ.flatten(), cells, deterministic)
    energy_BS, total_BS = parts_2X.view(2, batch, lattice.cells)
    filled_BS = total_BS != 0  # and not "> 0", which would hide a NaN
    surface_BS = torch.where(filled_BS, energy_BS / torch.where(filled_BS, total_BS, 1.0), 0.0)
    return Collected(surface_BS, filled_BS)


def corners(p_N3: Tensor, lattice: LatticeSettings) -> tuple[Tensor, Tensor]:
    """The four cells around each position, and its bilinear shares in them, which add up to 1.

    Every cell is one of the surface, even where a position is not a number; its shares are then
    none either, so that what they touch shows it.
    """
    x_N, y_N, _ = denormalise(p_N3, lattice).unbind(-1)
    left_N = x_N.detach().floor().clamp(0, lattice.width - 2)
    low_N = y_N.detach().floor().clamp(0, lattice.height - 2)
    x_N, y_N = (x_N - left_N).clamp(0, 1), (y_N - low_N).clamp(0, 1)
    cell_N = low_N.long() * lattice.width + left_N.long()
    cell_N = cell_N.clamp(0, lattice.cells - lattice.width - 2)
    cells = [cell_N + over for over in (0, 1, lattice.width, lattice.width + 1)]
    shares = ((1 - x_N) * (1 - y_N), x_N * (1 - y_N), (1 - x_N) * y_N, x_N * y_N)
    return torch.stack(cells, dim=-1), torch.stack(shares, dim=-1)


def importance(e_N: Tensor, p_N3: Tensor, k_N: Tensor) -> Tensor:
    """How much a flow counts among those of its cell, before the softmax; fp32.

    Strong ones count more, and those that took many steps; projected ones less.
    """
    z_N = p_N3[..., 2].float()
    left_N = torch.minimum((z_N + 1).abs(), (z_N - 1).abs())
    return e_N.float().abs() / (1 + left_N) * (1 + 0.1 * k_N)


def _nearest(p_N3: Tensor, lattice: LatticeSettings) -> tuple[Tensor, Tensor]:
    """The nearest cell and the whole share; no gradient, but a NaN stays one."""
    cell_N = cells_N(p_N3, lattice).clamp(0, lattice.cells - 1)
    share_N = torch.ones_like(cell_N) + 0 * p_N3.detach().sum(-1)
    return cell_N.unsqueeze(-1), share_N.unsqueeze(-1)


def _exp(weight_NJ: Tensor, share_NJ: Tensor, cell_NJ: Tensor, cells: int) -> Tensor:
    """``exp(weight)`` relative to the largest of the cell, so that no number of steps overflows."""
    with torch.no_grad():
        there_NJ = torch.where(share_NJ > 0, weight_NJ, 0.0)
        most_X = weight_NJ.new_zeros(cells)
        most_X = most_X.scatter_reduce(0, cell_NJ.flatten(), there_NJ.flatten(), "amax")
        most_NJ = most_X[cell_NJ]
    # A flow with no share in a cell yet has only a gradient there; it may be above the largest.
    return (weight_NJ - most_NJ).clamp(max=_MOST_EXPONENT).exp()


def _sums(value_2K: Tensor, cell_K: Tensor, cells: int, deterministic: bool) -> Tensor:
    """Sums of values per cell."""
    if not deterministic:
        return value_2K.new_zeros(2, cells).index_add(1, cell_K, value_2K)
    # Sorted, each cell is one stretch that is summed from its beginning to its end.
    cell_K, order_K = cell_K.sort(stable=True)
    length_X = torch.zeros(cells, dtype=torch.long, device=cell_K.device)
    length_X = length_X.index_add(0, cell_K, torch.ones_like(cell_K))
    return torch.stack(
        [
            torch.segment_reduce(value_K[order_K], "sum", lengths=length_X, unsafe=True, initial=0)
            for value_K in value_2K
        ]
    )
