"""The core: flows through the lattice, from the input surface to the output surface.

B batch, S cells, T lattice steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..kernels.check import fault
from ..kernels.plan import plan_for, saved_bytes
from ..kernels.support import against, against_kernels
from ..modes import chunked, compact, fused
from ..modes.fused_chunks import free_bytes
from ..modes.graph import Graphs
from . import loop as dense
from .carrier import Carrier, scale_at
from .coupling import Field
from .ending import Finished
from .flows import slots_for_children
from .neuron import Neuron
from .noise import Key
from .settings import ModelSettings
from .stepping import Parts

__all__ = ["Core"]

_MODES = {"dense": dense.run, "compact": compact.run, "chunked": chunked.run, "fused": fused.run}
_SHARE = 0.8
"""Of a GPU's free memory that a pass may take before it is computed in chunks."""


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
        mode = self.mode_for(surface_BHW)
        how: dict[str, Any] = {
            "steps": self.settings.steps,
            "key": Key(seed, step),
            "training": self.training,
            "scale": scale_at(step, self.settings.carrier),
        }
        if mode == "fused" and self.settings.flows.graph:
            trip = fused.set_out(self.parts, surface_BHW, **how)
            return self.graphs.run(trip, surface_BHW)
        return _MODES[mode](self.parts, surface_BHW, **how)

    def mode_for(self, surface_BHW: Tensor) -> str:
        """The mode that was set, or the best one; chunked where a backward needs too much memory.

        Too much is more than ``flows.activation_budget_gb``. Where that is not set, and nor is the
        mode, it is most of what a GPU had free when a batch of this size came for the first time.
        """
        settings, batch = self.settings, surface_BHW.shape[0]
        flows = settings.flows
        each = min(settings.lattice.cells, max(1, flows.capacity // batch))
        kind = surface_BHW.device.type
        itemsize = 2 if torch.is_autocast_enabled(kind) else 4
        mode = flows.mode
        if mode == "auto":
            mode = (
                "compact" if slots_for_children(batch, each, settings.steps, settings) else "dense"
            )
            if self.against_fused(surface_BHW) is None:
                mode = "fused"
        if not torch.is_grad_enabled():
            if mode != "chunked":
                return mode
            # There is nothing to compute twice for.
            return "compact" if self.against_fused(surface_BHW) else "fused"
        if mode == "fused":
            one = each * saved_bytes(plan_for(self.parts, settings.steps), itemsize)
        else:
            one = chunked.activation_bytes(settings, each, settings.steps, itemsize)
        if flows.activation_budget_gb is not None:
            return mode if batch * one <= flows.activation_budget_gb * 1e9 else "chunked"
        if flows.mode == "auto" and mode == "fused":
            fits = self.graphs.fits
            key = (tuple(surface_BHW.shape), itemsize, surface_BHW.device)
            if key not in fits:
                fits[key] = batch * one <= _SHARE * free_bytes(surface_BHW.device)
            return mode if fits[key] else "chunked"
        return mode

    def against_fused(self, surface_BHW: Tensor) -> str | None:
        """Why auto would not take fused mode for such a batch; None: it would."""
        settings, device = self.settings, surface_BHW.device
        if torch.compiler.is_compiling():
            return "the model is compiled"
        why = against(settings, surface_BHW.shape[0]) or against_kernels(settings, device)
        if why is not None:
            return why
        on = torch.is_autocast_enabled(device.type)
        dtype = torch.get_autocast_dtype(device.type) if on else torch.float32
        return fault(plan_for(self.parts, settings.steps), dtype, device)
