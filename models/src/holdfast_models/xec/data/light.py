"""Scintillation light from deposits of energy to sensors.

Lengths in cm, times in ns. Shapes: B events, K deposits, S sensors.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..geometry.positions import SIPM_CHIP, SIPM_GAP

_ABSORPTION = 150.0
_SPEED = 12.0  # of light in xenon, cm/ns
_DIFFUSE = 0.02  # of the direct light, spread evenly
_SEEN = 50.0  # photons of a deposit that may set the time of a sensor
_NEAR = 10.0  # where a SiPM is not seen as a disc


class Sensors(NamedTuple):
    """What the light meets."""

    xyz_S3: Tensor
    normal_S3: Tensor
    area_S: Tensor
    efficiency_S: Tensor
    noise_S: Tensor
    """Photons of electronic noise."""
    gain_S: Tensor


class Deposits(NamedTuple):
    """Where light is made: place, photons (or energy), delay in ns."""

    xyz_BK3: Tensor
    light_BK: Tensor
    ns_BK: Tensor


def light_on_sensors(sensors: Sensors, deposits: Deposits, *, exact: bool) -> tuple[Tensor, Tensor]:
    """Mean photons on each sensor, and the earliest arrival in ns.

    One deposit after the other: of all K at once no array would fit into a cache. Arrivals are
    those of deposits that are well seen; where none is, of any.

    Args:
        sensors: where the light goes.
        deposits: where it comes from; those without light count for nothing.
        exact: near SiPMs are four square chips, not a disc.
    """
    shape = len(deposits.xyz_BK3), len(sensors.xyz_S3)
    mean_BS = torch.zeros(shape, device=sensors.xyz_S3.device)
    seen_BS, any_BS = torch.full_like(mean_BS, torch.inf), torch.full_like(mean_BS, torch.inf)
    disc_S = sensors.area_S / math.pi
    for k in range(deposits.light_BK.shape[1]):
        light_B1 = deposits.light_BK[:, k, None]
        towards = [deposits.xyz_BK3[:, k, c, None] - sensors.xyz_S3[:, c] for c in range(3)]
        squared_BS = towards[0].square().addcmul_(towards[1], towards[1])
        squared_BS.addcmul_(towards[2], towards[2])
        facing_BS = towards[0] * sensors.normal_S3[:, 0]
        facing_BS.addcmul_(towards[1], sensors.normal_S3[:, 1])
        facing_BS.addcmul_(towards[2], sensors.normal_S3[:, 2]).clamp_min_(0.0)
        distance_BS = squared_BS.sqrt()
        # (1 - 1/q) / 2 with q = sqrt(1 + r), written so that small r keep their digits.
        r_BS = (facing_BS * disc_S).div_(squared_BS.mul_(distance_BS).clamp_min_(1e-6))
        q_BS = (r_BS + 1).sqrt_()
        photons_BS = r_BS.div_((q_BS + 1).mul_(q_BS)).mul_(0.5)
        if exact:
            _see_chips(photons_BS, sensors, towards, facing_BS, distance_BS)
        photons_BS.mul_(torch.exp(distance_BS * (-1 / _ABSORPTION))).mul_(light_B1)
        mean_BS.add_(photons_BS)
        arrival_BS = distance_BS.mul_(1 / _SPEED).add_(deposits.ns_BK[:, k, None])
        arrival_BS.masked_fill_(light_B1 <= 0, torch.inf)
        torch.minimum(any_BS, arrival_BS, out=any_BS)
        arrival_BS.masked_fill_(photons_BS <= _SEEN, torch.inf)
        torch.minimum(seen_BS, arrival_BS, out=seen_BS)
    diffuse_B1 = _DIFFUSE * mean_BS.sum(1, keepdim=True)
    mean_BS.addcmul_(diffuse_B1, sensors.area_S / sensors.area_S.sum())
    return mean_BS, torch.where(seen_BS.isfinite(), seen_BS, any_BS)


def _see_chips(
    photons_BS: Tensor,
    sensors: Sensors,
    towards: list[Tensor],
    facing_BS: Tensor,
    distance_BS: Tensor,
) -> None:
    """Put the solid angle of four square chips where a SiPM is near; farther a disc is as good."""
    sipm_S = sensors.area_S < sensors.area_S.amax()
    normal_S3 = sensors.normal_S3
    # The chips lie along z and along the azimuth: z x normal.
    along_BS = towards[1] * normal_S3[:, 0] - towards[0] * normal_S3[:, 1]
    height_BS = facing_BS.clamp_min(1e-4)
    edges = (-SIPM_GAP / 2 - SIPM_CHIP, -SIPM_GAP / 2, SIPM_GAP / 2, SIPM_GAP / 2 + SIPM_CHIP)
    solid_BS = torch.zeros_like(photons_BS)
    for i, across in enumerate(edges):
        a_BS = along_BS - across
        for j, up in enumerate(edges):
            b_BS = towards[2] - up
            corner_BS = (a_BS.square() + b_BS.square() + height_BS.square()).sqrt_()
            corner_BS = torch.atan(a_BS * b_BS / corner_BS.mul_(height_BS))
            solid_BS.add_(corner_BS, alpha=1.0 if (i + j) % 2 == 0 else -1.0)
    near_BS = sipm_S & (distance_BS < _NEAR) & (facing_BS > 0)
    photons_BS.copy_(torch.where(near_BS, solid_BS / (4 * math.pi), photons_BS))
