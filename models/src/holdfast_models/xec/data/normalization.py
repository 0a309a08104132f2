"""Raw photon counts and times as the network sees them, and back.

One implementation in torch serves loaders on the CPU and the transform on the device. Whether a
value was measured is decided here, from the raw numbers, and carried as masks from then on.

Shapes: B events, S sensors.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..settings import NormalizationSettings

NOT_AVAILABLE = 1e10
"""What files hold where a value is missing."""
_LARGEST = 9e9  # anything above means the same


class Inputs(NamedTuple):
    """Events, ready for a model."""

    x_BSC: Tensor
    """Normalised npho and time; sentinels where nothing was measured."""
    npho_valid_BS: Tensor
    time_valid_BS: Tensor
    npho_BS: Tensor
    """Photons as measured, 0 where there is no valid number."""


def normalise(npho_BS: Tensor, time_BS: Tensor, settings: NormalizationSettings) -> Inputs:
    """Normalise raw values; float32 whatever comes in, without a host sync."""
    npho_BS, time_BS = npho_BS.float(), time_BS.float()
    # NaN is on neither side of a number: two comparisons do, in a third of the time of isfinite.
    npho_valid_BS = (npho_BS <= _LARGEST) & (npho_BS > -math.inf)
    measured_BS = torch.where(npho_valid_BS, npho_BS, 0.0)
    legal_BS = measured_BS >= lowest_npho(settings)
    # A value without a root or logarithm must not reach it: its gradient and NaN would spread.
    scaled_BS = npho_to_scale(torch.where(legal_BS, measured_BS, 0.0), settings)
    scaled_BS = torch.where(legal_BS, scaled_BS, 0.0)
    time_valid_BS = (time_BS.abs() <= _LARGEST) & npho_valid_BS
    time_valid_BS = time_valid_BS & (measured_BS >= settings.npho_threshold)
    t_BS = time_BS / settings.time_scale - settings.time_shift
    x_BSC = torch.stack(
        (
            torch.where(npho_valid_BS, scaled_BS, settings.sentinel_npho),
            torch.where(time_valid_BS, t_BS, settings.sentinel_time),
        ),
        dim=-1,
    )
    return Inputs(x_BSC, npho_valid_BS, time_valid_BS, measured_BS)


def npho_to_scale(npho: Tensor, settings: NormalizationSettings) -> Tensor:
    """Photons to the network's scale; legal numbers only."""
    scale = settings.npho_scale
    match settings.npho_scheme:
        case "log1p":
            return torch.log1p(npho / scale) / settings.npho_scale2
        case "anscombe":
            return torch.sqrt((npho + 0.375) / (scale + 0.375))
        case "sqrt":
            return torch.sqrt(npho / scale)
        case "linear":
            return npho / scale


def npho_from_scale(y: Tensor, settings: NormalizationSettings) -> Tensor:
    """Photons from the network's scale."""
    scale = settings.npho_scale
    match settings.npho_scheme:
        case "log1p":
            return scale * torch.expm1(y * settings.npho_scale2)
        case "anscombe":
            return y.square() * (scale + 0.375) - 0.375
        case "sqrt":
            return y.square() * scale
        case "linear":
            return y * scale


def time_from_scale(y: Tensor, settings: NormalizationSettings) -> Tensor:
    """Seconds from the network's scale."""
    return (y + settings.time_shift) * settings.time_scale


def lowest_npho(settings: NormalizationSettings) -> float:
    """The lowest count that the scheme has a value for."""
    match settings.npho_scheme:
        case "log1p":
            return -0.999 * settings.npho_scale
        case "anscombe":
            return -0.375
        case "sqrt":
            return 0.0
        case "linear":
            return -math.inf
