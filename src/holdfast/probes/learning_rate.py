"""The learning rate of the first parameter group."""

from __future__ import annotations

import math

from torch import Tensor
from torch.optim import Optimizer

COLUMNS = {"lr": "learning rate of the first parameter group"}


def read(optimizer: Optimizer) -> float:
    """The learning rate, NaN when it lives on a device and reading it would wait."""
    value = optimizer.param_groups[0].get("lr", math.nan) if optimizer.param_groups else math.nan
    if type(value) is float:
        return value
    if isinstance(value, Tensor):
        return value.item() if value.device.type == "cpu" else math.nan
    return float(value)
