"""What measures on held-out pairs are compared with: mean, spread and candidates, in blocks.

Shapes: B rows of a block, K candidates, E teacher width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .pairs import Pairs
from .splits import row_bytes

MOST = 16_384
"""Held-out pairs whose targets are candidates for retrieval: 25 MB at width 384."""


def mean_target(pairs: Pairs) -> Tensor:
    """The mean [E] of all targets."""
    total_E = torch.zeros(pairs.width, dtype=torch.float64, device="cpu")
    for _, y_BE in pairs.blocks():
        total_E += y_BE.sum(0, dtype=torch.float64)
    return (total_E / len(pairs)).float()


def spread_of_targets(pairs: Pairs, mean_E: Tensor) -> float:
    """The mean squared distance of the targets from a point."""
    total = sum(float((y_BE - mean_E).square().sum()) for _, y_BE in pairs.blocks())
    return total / len(pairs)


def distinct_targets(pairs: Pairs, most: int = MOST) -> Tensor:
    """The different targets [K, E]; of more pairs than ``most``, those of every n-th."""
    seen: set[int] = set()
    kept: list[Tensor] = []
    for _, y_BE in pairs.blocks(math.ceil(len(pairs) / most)):
        first: dict[int, int] = {}
        for number, row in enumerate(row_bytes(y_BE)):
            first.setdefault(hash(row), number)
        kept.append(y_BE[[number for row, number in first.items() if row not in seen]])
        seen.update(first)
    return torch.cat(kept)
