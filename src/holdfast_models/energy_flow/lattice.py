"""The core: flows through the lattice, from the input surface to the output surface.

B batch, S cells, T lattice steps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from . import chunked, compact, dense
from .carrier import Carrier, scale_at
from .coupling import Field
from .ending import Finished
from .neuron import Neuron
from .noise import Key
from .settings import ModelSettings
from .stepping import Parts

__all__ = ["Core"]

_MODES = {"dense": dense.run, "compact": compact.run, "chunked": chunked.run}


class Core(nn.Module):
    """Neuron, carrier and, where flows are coupled, their field.

    Nothing of a run stays on it. Noise is there in training only.
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.settings = settings
        coupling = settings.flows.coupling
        self.neuron = Neuron(settings.carrier, coupling=coupling)
        self.carrier = Carrier(settings.carrier)
        self.field = Field(settings) if coupling else None

    @property
    def parts(self) -> Parts:
        """What the modes need of it."""
        return Parts(self.neuron, self.carrier, self.field, self.settings)

    def forward(self, surface_BHW: Tensor, *, step: int, seed: int) -> Finished:
        """Send the energies of a surface through the lattice.

        Args:
            surface_BHW: energies.
            step: of the optimizer, from 0; it sets noise and scale.
            seed: of the run; ranks that see different samples should have different ones.
        """
        return _MODES[self.mode_for(surface_BHW)](
            self.parts,
            surface_BHW,
            steps=self.settings.steps,
            key=Key(seed, step),
            training=self.training,
            scale=scale_at(step, self.settings.carrier),
        )

    def mode_for(self, surface_BHW: Tensor) -> str:
        """The mode that was set; chunked where a backward would need more than its budget."""
        flows = self.settings.flows
        if not torch.is_grad_enabled():
            # There is nothing to compute twice for.
            return "compact" if flows.mode == "chunked" else flows.mode
        if flows.activation_budget_gb is None:
            return flows.mode
        batch = surface_BHW.shape[0]
        each = min(self.settings.lattice.cells, flows.capacity // batch)
        itemsize = 2 if torch.is_autocast_enabled(surface_BHW.device.type) else 4
        one = chunked.activation_bytes(self.settings, each, self.settings.steps, itemsize)
        fits = batch * one <= flows.activation_budget_gb * 1e9
        return flows.mode if fits else "chunked"
