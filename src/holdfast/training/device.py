"""Where this process trains: its device, and its rank among others."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Place:
    """One process of a training run.

    Args:
        device: where the model lives.
        rank: the number of this process, from 0.
        world: how many processes train together.
        local: the number of this process on its machine.
    """

    device: torch.device
    rank: int = 0
    world: int = 1
    local: int = 0

    @property
    def main(self) -> bool:
        """Whether this is the process that prints and writes for all."""
        return self.rank == 0
