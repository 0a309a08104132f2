"""Liquid cells by name."""

from __future__ import annotations

from typing import Any

from holdfast import HoldfastError

from .cell import LiquidCell
from .cfc import CfC, WiredCfC
from .ltc import LTC
from .scan_cell import LTCScan

BACKBONES: dict[str, type[LiquidCell]] = {
    "cfc": CfC,
    "ltc": LTC,
    "ncp": WiredCfC,
    "ltc_scan": LTCScan,
}


def make_liquid(backbone: str, inputs: int, units: int, **options: Any) -> LiquidCell:
    """Cell from ``inputs`` features to ``units`` outputs; its state is ``state_width`` wide."""
    if backbone not in BACKBONES:
        raise HoldfastError(
            f"There is no liquid backbone {backbone!r}; choose one of {', '.join(BACKBONES)}."
        )
    return BACKBONES[backbone](inputs, units, **options)
