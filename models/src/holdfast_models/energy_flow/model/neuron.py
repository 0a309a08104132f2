"""The neuron: what a flow reads at its place.

N flows, o output width. Positions are already normalised to [-1, 1]: they are used as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast import HoldfastError

from .settings import CarrierSettings

__all__ = ["Neuron"]


class Neuron(nn.Module):
    """One small network for all places of the lattice.

    Args:
        settings: its widths.
        coupling: whether it also reads the field of energies around the flow.
    """

    def __init__(self, settings: CarrierSettings, *, coupling: bool = False) -> None:
        super().__init__()
        hidden = settings.neuron_hidden
        self.coupling = coupling
        self.coordinates = nn.Linear(3, 3)
        self.response = nn.Sequential(
            nn.Linear(5 if coupling else 4, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Linear(hidden, settings.neuron_output),
        )
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(module.bias)

    def forward(self, p_N3: Tensor, e_N1: Tensor, field_N1: Tensor | None = None) -> Tensor:
        """The response ``u_No`` at these positions, for these energies."""
        if (field_N1 is not None) != self.coupling:
            given, wanted = ("no field", "with") if self.coupling else ("a field", "without")
            raise HoldfastError(
                f"the neuron was made {wanted} coupling and is given {given}; "
                "give it field_N1 exactly when flows.coupling is on"
            )
        read = [self.coordinates(p_N3), e_N1]
        if field_N1 is not None:
            read.append(field_N1)
        return self.response(torch.cat(read, dim=-1))
