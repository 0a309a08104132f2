"""What measures on held-out pairs are compared with: mean, spread and candidates, in blocks.

Shapes: B rows of a block, K candidates, E teacher width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from .pairs import Pairs
from .splits import row_bytes

MOST = 16_384
"""Held-out pairs whose targets are candidates for retrieval: 25 MB at width 384."""


def mean_target(pairs: Pairs) -> Tensor:
    """The mean [E] of all targets."""
    total_E = torch.zeros(pairs.width, dtype=torch.float64, device="cpu")
    for y_BE in pairs.targets():
        total_E += y_BE.sum(0, dtype=torch.float64)
    return (total_E / len(pairs)).float()


def spread_of_targets(pairs: Pairs, mean_E: Tensor) -> float:
    """The mean squared distance of the targets from a point."""
    total = sum(float((y_BE - mean_E).square().sum()) for y_BE in pairs.targets())
    return total / len(pairs)


def unit_targets(pairs: Pairs, most: int = MOST) -> Tensor:
    """Different targets [K, E] at length 1; of more pairs than ``most``, those of every n-th."""
    every = math.ceil(len(pairs) / most)
    found_KE = torch.empty(math.ceil(len(pairs) / every), pairs.width, device="cpu")
    seen: set[int] = set()
    for y_BE in pairs.targets(every):
        fresh: dict[int, int] = {}
        for number, row in enumerate(row_bytes(y_BE)):
            if hash(row) not in seen:
                fresh.setdefault(hash(row), number)
        rows_BE = functional.normalize(y_BE[list(fresh.values())], dim=1)
        found_KE[len(seen) : len(seen) + len(fresh)] = rows_BE
        seen.update(fresh)
    return found_KE[: len(seen)]
