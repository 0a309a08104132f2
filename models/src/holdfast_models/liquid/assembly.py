"""The network of a run."""

from __future__ import annotations

from .model.model import LiquidNet, Sizes
from .run_settings import LiquidSettings


def make_net(settings: LiquidSettings, sizes: Sizes) -> LiquidNet:
    """As the settings say, for data of these sizes."""
    return LiquidNet(settings.model, sizes, settings.plasticity)
