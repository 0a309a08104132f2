"""Field coupling: flows feel the energies of the living flows around them.

B batch, S cells, N flows, J = 4 cells around a flow.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .collection import corners
from .flows import Flows
from .settings import ModelSettings

__all__ = ["Field"]


class Field(nn.Module):
    """The smoothed field of energies, read at the place of each flow.

    Energies are spread over the four cells around a flow, cell by cell summed, and smoothed by
    one learned 3x3 filter, a soft blur until it is trained. Samples do not see each other.
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.settings = settings
        side_3 = torch.tensor([0.25, 0.5, 0.25])
        self.filter = nn.Parameter(torch.outer(side_3, side_3).view(1, 1, 3, 3))

    def forward(self, flows: Flows, active_N: Tensor, batch: int) -> Tensor:
        """The field ``field_N1`` at the flows' positions, made by those that are active."""
        lattice = self.settings.lattice
        cell_NJ, share_NJ = corners(flows.p_N3, lattice)
        cell_NJ = flows.sample_N[:, None] * lattice.cells + cell_NJ
        part_NJ = share_NJ * flows.e_N1.where(active_N[:, None], 0.0)
        empty_BS = part_NJ.new_zeros(batch * lattice.cells)
        if self.settings.flows.deterministic:
            # Sorts before it adds, also on a GPU, where index_add does not.
            field_BS = empty_BS.index_put((cell_NJ.flatten(),), part_NJ.flatten(), accumulate=True)
        else:
            field_BS = empty_BS.index_add(0, cell_NJ.flatten(), part_NJ.flatten())
        field_BHW = field_BS.view(batch, 1, lattice.height, lattice.width)
        smooth_BHW = functional.conv2d(field_BHW, self.filter, padding=1).float()
        return (smooth_BHW.flatten()[cell_NJ] * share_NJ).sum(dim=-1, keepdim=True)
