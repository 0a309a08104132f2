"""The learning rate of the first parameter group, and what else moves weights."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

# The rate is a column; the others choose a kernel, which may be holdfast's choice.
_NOT = ("lr", "initial_lr", "fused", "foreach", "capturable", "differentiable")


def read(optimizer: Optimizer) -> float:
    """The learning rate, NaN when it lives on a device and reading it would wait."""
    value = optimizer.param_groups[0].get("lr", math.nan) if optimizer.param_groups else math.nan
    if type(value) is float:
        return value
    if isinstance(value, Tensor):
        return value.item() if value.device.type == "cpu" else math.nan
    return float(value)


def settings(optimizer: Optimizer) -> dict[str, Any]:
    """Numbers and flags of the first parameter group, as plain data; none that is on a device."""
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    plain = {n: v for n, v in group.items() if isinstance(v, bool | int | float | tuple | str)}
    return {name: str(value) for name, value in plain.items() if name not in _NOT}
