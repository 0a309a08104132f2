"""Detectors of the lattice: what goes wrong in it without a loss that tells; never imports torch.

They read the records of the trainer (``numbers`` every 50 steps, ``validation``) and are silent
in runs of anything else. Most causal first.
"""

from __future__ import annotations

from .carrier_input import CarrierInput
from .empty_surface import EmptySurface
from .energy_drift import EnergyDrift
from .idle_mapper import IdleMapper
from .unfinished_flows import UnfinishedFlows

__all__ = [
    "DETECTORS",
    "CarrierInput",
    "EmptySurface",
    "EnergyDrift",
    "IdleMapper",
    "UnfinishedFlows",
]

DETECTORS = (UnfinishedFlows, EmptySurface, CarrierInput, EnergyDrift, IdleMapper)
"""For the plugin group ``holdfast.detectors``."""
