"""The core: flows through the lattice, from the input surface to the output surface.

B batch, W and H the sides of the surface.
"""

from __future__ import annotations

from torch import Tensor, nn

from holdfast.training import Graphs

from ..modes import entry
from .carrier import Carrier, scale_at
from .coupling import Field
from .ending import Finished
from .neuron import Neuron
from .noise import Key
from .settings import ModelSettings
from .stepping import LatticePass, Parts

__all__ = ["Core"]


class Core(nn.Module):
    """Neuron, carrier and, where flows are coupled, their field.

    Nothing of a run stays on it, but for the CUDA graphs that replay it. Noise is there in training
    only.
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.settings = settings
        coupling = settings.flows.coupling
        self.neuron = Neuron(settings.carrier, coupling=coupling)
        self.carrier = Carrier(settings.carrier)
        self.field = Field(settings) if coupling else None
        self.graphs = Graphs()
        self._fits: entry.Fits = {}

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
        lattice_pass = LatticePass(
            batch=surface_BHW.shape[0],
            steps=self.settings.steps,
            key=Key(seed, step),
            training=self.training,
            scale=scale_at(step, self.settings.carrier),
        )
        return entry.run(self.parts, lattice_pass, surface_BHW, self.graphs, self._fits)

    def mode_for(self, surface_BHW: Tensor) -> str:
        """The mode that such a batch takes; see ``modes.entry.choose``."""
        return entry.choose(self.parts, surface_BHW, self._fits)
