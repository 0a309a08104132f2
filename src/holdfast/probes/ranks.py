"""How many processes train together."""

from __future__ import annotations

import torch

_AVAILABLE = torch.distributed.is_available()


def ranks() -> int:
    """The size of the process group; 1 without one."""
    distributed = torch.distributed
    return distributed.get_world_size() if _AVAILABLE and distributed.is_initialized() else 1
