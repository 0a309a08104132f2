"""The whole model: embedding to surface, through the lattice, surface to embedding.

Shapes: B batch, E teacher width, W and H the sides of the surface, S its cells.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from ..step_metrics import Laps, lap
from ..text.bridge import TextBridge
from .ending import Finished
from .lattice import Core
from .mappers import InputMapper, OutputMapper
from .settings import ModelSettings


class Output(NamedTuple):
    """What comes of a batch.

    Args:
        y_BE: the predicted embedding, fp32.
        surface_BHW: the energy the flows began with.
        out_BS: the energy that was collected.
        flows: how the flows ended; None where the core is left out.
    """

    y_BE: Tensor
    surface_BHW: Tensor
    out_BS: Tensor
    flows: Finished | None


class EnergyFlow(nn.Module):
    """Mappers, core and text bridge as one module: all of it is trained, moved and saved.

    Args:
        settings: sizes and behaviour.
        bridge: reads and writes text; None: embeddings only.
        core: False leaves the lattice out, the honest baseline for every claim about it.
    """

    def __init__(
        self, settings: ModelSettings, bridge: TextBridge | None = None, *, core: bool = True
    ) -> None:
        super().__init__()
        self.settings = settings
        self.input = InputMapper(settings.width, settings.lattice, settings.mapper)
        self.core = Core(settings) if core else None
        self.output = OutputMapper(settings.width, settings.lattice, settings.mapper)
        self.bridge = bridge

    def forward(
        self, x_BE: Tensor, *, step: int = 0, seed: int = 0, laps: Laps | None = None
    ) -> Output:
        """Carry embeddings through the lattice.

        Args:
            x_BE: embeddings of the teacher.
            step: the optimizer step, for curriculum and noise.
            seed: of the noise, which only a model in training mode has.
            laps: times the way through the lattice.
        """
        surface_BHW = self.input(x_BE)
        flows = None
        out_BS = surface_BHW.flatten(1)
        if self.core is not None:
            with lap(laps, "flow"):
                flows = self.core(surface_BHW, step=step, seed=seed)
            out_BS = flows.surface_BS
        return Output(self.output(out_BS).float(), surface_BHW, out_BS, flows)
