"""Places in the box: cells and planes, and the normalised positions that flows have.

N flows, S cells of a surface, row by row (``s = y * width + x``). Nothing here copies from the
host to the device, so that all of it can stand in a captured graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .settings import FlowSettings, LatticeSettings

__all__ = ["cells_N", "denormalise", "noise_at", "noise_factors_3", "normalise", "start_S3"]


def normalise(place_N3: Tensor, lattice: LatticeSettings) -> Tensor:
    """Positions in [-1, 1] of real coordinates: x to width - 1, y to height - 1, z to depth."""
    axes = zip(place_N3.unbind(-1), _spans(lattice), strict=True)
    return torch.stack([2 * place_N / span - 1 for place_N, span in axes], dim=-1)


def denormalise(p_N3: Tensor, lattice: LatticeSettings) -> Tensor:
    """Real coordinates of positions, not rounded."""
    axes = zip(p_N3.unbind(-1), _spans(lattice), strict=True)
    return torch.stack([(p_N + 1) / 2 * span for p_N, span in axes], dim=-1)


def start_S3(
    lattice: LatticeSettings,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Where the flows of one sample begin: each cell of the plane ``depth // 2``."""
    s_S = torch.arange(lattice.cells, device=device)
    x_S, y_S = s_S % lattice.width, s_S // lattice.width
    z_S = torch.full_like(s_S, lattice.depth // 2)
    return normalise(torch.stack((x_S, y_S, z_S), dim=-1).to(dtype), lattice)


def cells_N(p_N3: Tensor, lattice: LatticeSettings) -> Tensor:
    """The number of the nearest cell of each position; for the end of a flow only.

    While a flow lives its position is never rounded: small steps would be swallowed.
    """
    x_N, y_N, _ = denormalise(p_N3.detach(), lattice).unbind(-1)
    x_N = x_N.round().clamp(0, lattice.width - 1)
    y_N = y_N.round().clamp(0, lattice.height - 1)
    # Each to a whole number by itself: their sum may be more than a float of 16 bits can hold.
    return y_N.long() * lattice.width + x_N.long()


def noise_factors_3(
    lattice: LatticeSettings,
    *,
    on_z: bool = True,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """What one cell is in normalised units on each axis; 0 on z where no noise is wanted there."""
    x, y, z = (2 / span for span in _spans(lattice))
    sizes = (x, y, z if on_z else 0.0)
    return torch.stack([torch.full((), size, device=device, dtype=dtype) for size in sizes])


def noise_at(step: int, settings: FlowSettings) -> float:
    """Standard deviation of the noise in cells at this optimizer step, from 0."""
    return settings.noise_cells * max(0.0, 1 - step / settings.noise_anneal)


def _spans(lattice: LatticeSettings) -> tuple[int, int, int]:
    return lattice.width - 1, lattice.height - 1, lattice.depth
