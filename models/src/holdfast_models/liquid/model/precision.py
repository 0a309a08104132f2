"""Recurrences in full precision under autocast, which would round their state at every step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def full_precision(x: Tensor) -> Tensor:
    """``x`` in float32 if it came in half precision; float64 stays."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def no_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Context in which matrix products keep the precision of their inputs."""
    if not torch.is_autocast_enabled(x.device.type):
        return nullcontext()  # an exported program with an autocast in it cannot be read back
    return torch.autocast(x.device.type, enabled=False)
