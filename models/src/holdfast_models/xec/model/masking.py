"""Which sensors are hidden from a model, and how they then look to it.

B events, S sensors (of the detector or of one face), C channels. Random keys are an argument,
uniform in [0, 1): validation repeats them, and everything compiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.normalization import Inputs
from ..geometry.layout import FACES, sensors_of
from ..settings import NormalizationSettings

__all__ = ["Hidden", "drop_sensors", "hide_flat", "hide_random", "valid_of", "with_hidden"]

_DARKEST = 0.01  # photons; where the bins of the flat choice begin

Ratio = float | Mapping[str, float]
"""The share of the maskable sensors to hide; or one for each of some faces, and none elsewhere."""


def _spans(ids: np.ndarray) -> list[tuple[int, int]]:
    """Ascending ids as ranges."""
    runs = np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1)
    return [(int(run[0]), int(run[-1]) + 1) for run in runs]


_SPANS = {face: _spans(sensors_of(face)) for face in FACES}  # the outer face has two


class Hidden(NamedTuple):
    """What was chosen."""

    hidden_BS: Tensor
    maskable_BS: Tensor

    def actual_ratio(self) -> Tensor:
        """The share of the maskable sensors that is hidden, over the batch."""
        return self.hidden_BS.sum() / self.maskable_BS.sum().clamp_min(1)


def hide_random(
    inputs: Inputs,
    ratio: Ratio,
    keys_BS: Tensor,
    *,
    channels: Sequence[str],
    scale: float = 1.0,
    threshold: float = 100.0,
) -> Hidden:
    """Choose uniformly among the maskable sensors, floor(ratio x their number) of each event.

    Args:
        inputs: the events.
        ratio: how many.
        keys_BS: uniform random numbers; the smallest are hidden.
        channels: that are predicted; where time is, a sensor without a valid time is not maskable.
        scale: above 1, sensors with more photons than ``threshold`` are hidden more often.
        threshold: in photons.
    """
    keys_BS = torch.where(inputs.npho_BS > threshold, keys_BS / scale, keys_BS)
    maskable_BS = _maskable(inputs, channels)
    hidden_BS = _by_face(_smallest, ratio, maskable_BS, keys_BS)
    return Hidden(hidden_BS, maskable_BS)


def hide_flat(inputs: Inputs, ratio: Ratio, keys_BS: Tensor, *, channels: Sequence[str]) -> Hidden:
    """Choose as many, flat in the logarithm of npho; arguments as of ``hide_random``.

    As many bins of equal width as sensors are to be hidden, up to the brightest one; one sensor
    of each bin that has any, the others uniformly.
    """
    maskable_BS = _maskable(inputs, channels)
    hidden_BS = _by_face(_flat, ratio, maskable_BS, keys_BS, inputs.npho_BS)
    return Hidden(hidden_BS, maskable_BS)


def with_hidden(inputs: Inputs, hidden_BS: Tensor, normalization: NormalizationSettings) -> Inputs:
    """The events without these sensors: sentinels in both channels, valid in none, no photons."""
    hidden_BSC = hidden_BS.unsqueeze(-1)
    npho_BSC = torch.where(hidden_BSC, normalization.sentinel_npho, inputs.x_BSC[..., :1])
    time_BSC = torch.where(hidden_BSC, normalization.sentinel_time, inputs.x_BSC[..., 1:])
    x_BSC = torch.cat((npho_BSC, time_BSC), dim=-1)
    npho_valid_BS, time_valid_BS = (
        inputs.npho_valid_BS & ~hidden_BS,
        inputs.time_valid_BS & ~hidden_BS,
    )
    measured_BS = torch.where(hidden_BS, 0.0, inputs.npho_BS)
    return Inputs(x_BSC, npho_valid_BS, time_valid_BS, measured_BS)


def drop_sensors(
    inputs: Inputs, rate: float, keys_BS: Tensor, normalization: NormalizationSettings
) -> Inputs:
    """Channel dropout: each sensor is dead with this probability, not merely zero."""
    return with_hidden(inputs, keys_BS < rate, normalization)


def valid_of(inputs: Inputs) -> Tensor:
    """Where ``x_BSC`` holds a measured value and no sentinel, as models take it, (B, S, C)."""
    return torch.stack((inputs.npho_valid_BS, inputs.time_valid_BS), dim=-1)


def _maskable(inputs: Inputs, channels: Sequence[str]) -> Tensor:
    return inputs.time_valid_BS if "time" in channels else inputs.npho_valid_BS


def _by_face(choose: Callable[..., Tensor], ratio: Ratio, *values_BS: Tensor) -> Tensor:
    """The choice over all sensors, or over each given face."""
    if not isinstance(ratio, Mapping):
        return choose(ratio, *values_BS)
    hidden_BS = torch.zeros_like(values_BS[0])
    for face, share in ratio.items():
        spans = _SPANS[face]
        own = [torch.cat([v[:, a:b] for a, b in spans], dim=1) for v in values_BS]
        chosen = choose(share, *own).split([b - a for a, b in spans], dim=1)
        for (first, end), part in zip(spans, chosen, strict=True):
            hidden_BS[:, first:end] = part
    return hidden_BS


def _smallest(ratio: float, maskable_BS: Tensor, keys_BS: Tensor) -> Tensor:
    """The maskable sensors with the smallest keys."""
    order_BS = torch.where(maskable_BS, keys_BS, math.inf).argsort(dim=1)
    return maskable_BS & (_ranks(order_BS) < _wanted(ratio, maskable_BS))


def _flat(ratio: float, maskable_BS: Tensor, keys_BS: Tensor, npho_BS: Tensor) -> Tensor:
    bins_B1 = _wanted(ratio, maskable_BS)
    light_BS = torch.where(maskable_BS, npho_BS, 0.0).clamp_min(_DARKEST).log() - math.log(_DARKEST)
    most_B1 = light_BS.amax(1, keepdim=True).clamp_min(1e-6)
    bin_BS = torch.minimum((light_BS / most_B1 * bins_B1).long(), bins_B1 - 1)
    bin_BS = torch.where(maskable_BS, bin_BS, bin_BS.shape[1])  # after all others
    # The smallest key of each bin comes first in it; float64, so that keys survive the sum.
    order_BS = (bin_BS + keys_BS.double()).argsort(dim=1)
    sorted_BS = bin_BS.gather(1, order_BS)
    new_BS = torch.ones_like(maskable_BS)
    new_BS[:, 1:] = sorted_BS[:, 1:] != sorted_BS[:, :-1]
    first_BS = torch.zeros_like(maskable_BS).scatter(1, order_BS, new_BS)
    return _smallest(ratio, maskable_BS, torch.where(first_BS, keys_BS - 1, keys_BS))


def _wanted(ratio: float, maskable_BS: Tensor) -> Tensor:
    # float64: floor(0.7 * 10) is 7, as in Python.
    return (maskable_BS.sum(1, keepdim=True).double() * ratio).floor().long()


def _ranks(order_BS: Tensor) -> Tensor:
    places = torch.arange(order_BS.shape[1], device=order_BS.device).expand_as(order_BS)
    return torch.empty_like(order_BS).scatter(1, order_BS, places)
