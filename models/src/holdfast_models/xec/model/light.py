"""Photon counts: their sum, which an energy is measured against, and how far they scatter.

B events, S sensors, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..data.normalization import npho_from_scale
from ..settings import NormalizationSettings

__all__ = ["light_of", "spread_of"]

_PER_ELECTRON = 10.0  # photons that one photoelectron stands for, its excess noise included


def light_of(
    x_BSC: Tensor, valid_BSC: Tensor | None, normalization: NormalizationSettings
) -> Tensor:
    """Photons of all sensors together, (B, 1); at least one."""
    npho_BS = npho_from_scale(x_BSC[..., 0].float(), normalization)
    there_BS = x_BSC[..., 0] != normalization.sentinel_npho
    if valid_BSC is not None:
        there_BS = valid_BSC[..., 0]
    return torch.where(there_BS, npho_BS, 0.0).sum(1, keepdim=True).clamp_min(1.0)


def spread_of(npho: Tensor) -> Tensor:
    """How many photons a count scatters by where so many are expected.

    The statistics of photoelectrons, and the noise of one where it is dark.
    """
    return (_PER_ELECTRON * (npho.clamp_min(0.0) + _PER_ELECTRON)).sqrt()
