"""Raw photon counts and times as the network sees them, and back.

One implementation in torch serves loaders on the CPU and the transform on the device. Whether a
value was measured is decided here, from the raw numbers, and carried as masks from then on.

Shapes: B events, S sensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
    return marked(scaled_BS, t_BS, npho_valid_BS, time_valid_BS, measured_BS, settings)


def marked(
    npho_BS: Tensor,
    time_BS: Tensor,
    npho_valid_BS: Tensor,
    time_valid_BS: Tensor,
    measured_BS: Tensor,
    settings: NormalizationSettings,
) -> Inputs:
    """Normalised values with sentinels where nothing was measured."""
    npho_BS = torch.where(npho_valid_BS, npho_BS, settings.sentinel_npho)
    time_BS = torch.where(time_valid_BS, time_BS, settings.sentinel_time)
    return Inputs(torch.stack((npho_BS, time_BS), -1), npho_valid_BS, time_valid_BS, measured_BS)


class _Scheme(NamedTuple):
    """Photons to the network's scale, back, and the lowest count that has a value there."""

    forward: Callable[[Tensor, NormalizationSettings], Tensor]
    back: Callable[[Tensor, NormalizationSettings], Tensor]
    lowest: Callable[[NormalizationSettings], float]


_SCHEMES = {
    "log1p": _Scheme(
        lambda x, s: torch.log1p(x / s.npho_scale) / s.npho_scale2,
        lambda y, s: s.npho_scale * torch.expm1(y * s.npho_scale2),
        lambda s: -0.999 * s.npho_scale,
    ),
    "anscombe": _Scheme(
        lambda x, s: torch.sqrt((x + 0.375) / (s.npho_scale + 0.375)),
        lambda y, s: y.square() * (s.npho_scale + 0.375) - 0.375,
        lambda s: -0.375,
    ),
    "sqrt": _Scheme(
        lambda x, s: torch.sqrt(x / s.npho_scale),
        lambda y, s: y.square() * s.npho_scale,
        lambda s: 0.0,
    ),
    "linear": _Scheme(
        lambda x, s: x / s.npho_scale, lambda y, s: y * s.npho_scale, lambda s: -math.inf
    ),
}


def npho_to_scale(npho: Tensor, settings: NormalizationSettings) -> Tensor:
    """Photons to the network's scale; legal numbers only."""
    return _SCHEMES[settings.npho_scheme].forward(npho, settings)


def npho_from_scale(y: Tensor, settings: NormalizationSettings) -> Tensor:
    """Photons from the network's scale."""
    return _SCHEMES[settings.npho_scheme].back(y, settings)


def lowest_npho(settings: NormalizationSettings) -> float:
    """The lowest count that the scheme has a value for."""
    return _SCHEMES[settings.npho_scheme].lowest(settings)


def time_from_scale(y: Tensor, settings: NormalizationSettings) -> Tensor:
    """Seconds from the network's scale."""
    return (y + settings.time_shift) * settings.time_scale
