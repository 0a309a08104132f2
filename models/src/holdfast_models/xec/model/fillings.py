"""Fillings of hidden or dead sensors that learn nothing: what an inpainter starts from and beats.

They take photon counts and say which sensors are usable, and give a value for every sensor from
the usable ones around it, so that the same call serves training, scoring and the dead-channel
study. A sensor with no usable one around it gets the mean of its face, a dark face 0.

Shapes: B events, S sensors, K slots of a table of neighbours, N sensors of one face.
"""

from __future__ import annotations

import copy
import functools
import math

import numpy as np
import torch
from torch import Tensor, nn

from ..geometry import layout
from ..geometry.coordinates import xyz_of
from ..geometry.neighbours import ABSENT, within_hops
from ..geometry.positions import areas, normals, positions

_TINY = 1e-12


class NeighbourMean(nn.Module):
    """Mean of the usable neighbours within some steps on the same face."""

    table_SK: Tensor
    face_S: Tensor

    def __init__(self, hops: int = 1) -> None:
        super().__init__()
        table = within_hops(hops)
        # What is absent points to one more sensor, which is never usable.
        table = np.where(table == ABSENT, layout.SENSORS, table)
        self.register_buffer("table_SK", torch.from_numpy(table), persistent=False)
        self.register_buffer("face_S", _codes(), persistent=False)

    def forward(self, npho_BS: Tensor, usable_BS: Tensor) -> Tensor:
        """A value for every sensor; its own is never used."""
        light_BS = torch.where(usable_BS, npho_BS.float(), 0.0)
        padded_BS = nn.functional.pad(light_BS, (0, 1))
        count_BS = nn.functional.pad(usable_BS.float(), (0, 1))
        # Slot by slot: all at once would take K times the memory of the events.
        total_BS, number_BS = torch.zeros_like(light_BS), torch.zeros_like(light_BS)
        for slot_S in self.table_SK.unbind(1):
            total_BS = total_BS + padded_BS[:, slot_S]
            number_BS = number_BS + count_BS[:, slot_S]
        mean_BS = total_BS / number_BS.clamp_min(1)
        return torch.where(number_BS > 0, mean_BS, _face_mean(light_BS, usable_BS, self.face_S))


class SolidAngleMean(nn.Module):
    """Light of the usable sensors of the same face within 20 cm, shared by solid angle.

    The guess of sensor i is Omega_i * sum(npho_j) / sum(Omega_j), seen from where the photon
    interacted: its true place, or one that was reconstructed.
    """

    face_S: Tensor
    place_S3: Tensor
    normal_S3: Tensor
    area_S: Tensor

    def __init__(self, reach: float = 20.0) -> None:
        super().__init__()
        for name, values in (
            ("place_S3", positions()), ("normal_S3", normals()), ("area_S", areas())
        ):  # fmt: skip
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32), persistent=False)
        self.register_buffer("face_S", _codes(), persistent=False)
        for face in layout.FACES:
            ids = torch.from_numpy(layout.sensors_of(face))
            where_N3 = self.place_S3[ids]
            near_NN = (torch.cdist(where_N3, where_N3) <= reach).float().fill_diagonal_(0)
            self.register_buffer(f"ids_{face}", ids, persistent=False)
            self.register_buffer(f"near_{face}", near_NN, persistent=False)

    def forward(self, npho_BS: Tensor, usable_BS: Tensor, uvw_B3: Tensor) -> Tensor:
        """A value for every sensor; its own is never used."""
        omega_BS = solid_angles(xyz_of(uvw_B3.float()), self.place_S3, self.normal_S3, self.area_S)
        light_BS = torch.where(usable_BS, npho_BS.float(), 0.0)
        seen_BS = torch.where(usable_BS, omega_BS, 0.0)
        filled_BS = _face_mean(light_BS, usable_BS, self.face_S)
        for face in layout.FACES:
            ids, near_NN = self.get_buffer(f"ids_{face}"), self.get_buffer(f"near_{face}")
            light_BN, angle_BN = light_BS[:, ids] @ near_NN, seen_BS[:, ids] @ near_NN
            guess_BN = omega_BS[:, ids] * light_BN / angle_BN.clamp_min(_TINY)
            # Where no direct light comes the others see none either: what they have is diffuse.
            count_BN = usable_BS[:, ids].float() @ near_NN
            guess_BN = torch.where(angle_BN > _TINY, guess_BN, light_BN / count_BN.clamp_min(1))
            guess_BN = torch.where(count_BN > 0, guess_BN, filled_BS[:, ids])
            filled_BS = filled_BS.index_copy(1, ids, guess_BN)
        return filled_BS


def baselines(npho_BS: Tensor, usable_BS: Tensor, uvw_B3: Tensor | None) -> dict[str, Tensor]:
    """What every filling says, by name; light by solid angle only where the place is known."""
    found = {"neighbours": _filling(NeighbourMean, npho_BS.device)(npho_BS, usable_BS)}
    if uvw_B3 is not None:
        angles = _filling(SolidAngleMean, npho_BS.device)
        found["solid angle"] = angles(npho_BS, usable_BS, uvw_B3)
    return found


def _filling(kind: type[nn.Module], device: torch.device) -> nn.Module:
    """Its tables take a second to make, and stay on the host: a device has no room for them."""
    return copy.deepcopy(_made(kind)).to(device)


@functools.cache
def _made(kind: type[nn.Module]) -> nn.Module:
    return kind()


def solid_angles(xyz_B3: Tensor, place_S3: Tensor, normal_S3: Tensor, area_S: Tensor) -> Tensor:
    """The share of the light of a point that meets each sensor, without absorption.

    Exact on the axis of a disc, with the right limit far away.
    """
    towards_BS3 = xyz_B3[:, None] - place_S3
    square_BS = towards_BS3.square().sum(-1).clamp_min(1e-4)
    cosine_BS = (towards_BS3 * normal_S3).sum(-1).clamp_min(0) / square_BS.sqrt()
    x_BS = area_S * cosine_BS / (math.pi * square_BS)
    # 1 - 1 / sqrt(1 + x) without the cancellation that far sensors would suffer.
    root_BS = torch.sqrt(1 + x_BS)
    return 0.5 * x_BS / (root_BS * (root_BS + 1))


def _codes() -> Tensor:
    return torch.from_numpy(layout.face_of_sensor().copy())


def _face_mean(light_BS: Tensor, usable_BS: Tensor, face_S: Tensor) -> Tensor:
    """The mean of the usable sensors of each sensor's face."""
    sums_BF = light_BS.new_zeros(len(light_BS), len(layout.FACES)).index_add(1, face_S, light_BS)
    counts_BF = torch.zeros_like(sums_BF).index_add(1, face_S, usable_BS.to(light_BS.dtype))
    return (sums_BF / counts_BF.clamp_min(1))[:, face_S]
