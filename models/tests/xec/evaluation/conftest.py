"""Events of a point source, quick to make: light by solid angle, times by distance."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from holdfast_models.xec.geometry.coordinates import xyz_of
from holdfast_models.xec.model.fillings import SolidAngleMean, solid_angles

MakeEvents = Callable[..., dict[str, Tensor]]


@pytest.fixture(scope="session")
def make_events(shared_solid_angle: SolidAngleMean) -> MakeEvents:
    """``make_events(100, seed=1, dead=60)``: events in the raw form of batches."""

    def make(count: int, *, seed: int = 1, dead: int = 0) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)

        def uniform(low: float, high: float) -> Tensor:
            return low + (high - low) * torch.rand(count, generator=generator)

        energy = uniform(0.015, 0.060)
        uvw = torch.stack((uniform(-22, 22), uniform(-60, 60), uniform(1.0, 12)), dim=-1)
        xyz = xyz_of(uvw)
        tables = shared_solid_angle
        share = solid_angles(xyz, tables.place_S3, tables.normal_S3, tables.area_S)
        mean = share * energy[:, None] * 3.45e7
        npho = torch.poisson(mean * 0.15, generator=generator) / 0.15
        t0 = 2e-9 * torch.randn(count, generator=generator)
        way = (xyz[:, None] - tables.place_S3).norm(dim=-1)
        noise = torch.randn(mean.shape, generator=generator) * 0.1e-9
        time = t0[:, None] + way / 12 * 1e-9 + noise
        gone = torch.randperm(npho.shape[1], generator=torch.Generator().manual_seed(9))[:dead]
        npho[:, gone] = time[:, gone] = 1e10
        angle = torch.stack((uniform(60, 120), uniform(-60, 60)), dim=-1)
        return {
            "npho": npho, "time": time, "energy": energy, "timing": t0,
            "uvwFI": uvw, "angle": angle,
        }  # fmt: skip

    return make
