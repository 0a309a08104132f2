from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast_models.xec.geometry import layout, positions
from holdfast_models.xec.geometry.coordinates import xyz_of
from holdfast_models.xec.model.fillings import NeighbourMean, SolidAngleMean, solid_angles


@pytest.fixture(scope="module")
def light() -> Tensor:
    return torch.rand(2, layout.SENSORS, generator=torch.Generator().manual_seed(1)) * 100


def test_the_mean_of_the_eight_around_a_sensor(light: Tensor) -> None:
    usable = torch.ones_like(light, dtype=torch.bool)
    filled = NeighbourMean()(light, usable)
    image = layout.inner()
    around = [image[9 + i, 19 + j] for i in range(3) for j in range(3) if (i, j) != (1, 1)]
    expected = light[:, torch.tensor(around)].mean(1)
    torch.testing.assert_close(filled[:, image[10, 20]], expected)
    corner = light[:, torch.tensor([image[0, 1], image[1, 0], image[1, 1]])].mean(1)
    torch.testing.assert_close(filled[:, 0], corner)


def test_dead_neighbours_and_the_sensor_itself_are_not_used(light: Tensor) -> None:
    usable = torch.ones_like(light, dtype=torch.bool)
    sensor, dead = int(layout.inner()[10, 20]), torch.tensor(layout.inner()[9, 19:22])
    usable[:, sensor], usable[:, dead] = False, False
    given = light.clone()
    given[:, dead] = 1e10
    given[0, sensor] = float("nan")
    filled = NeighbourMean()(given, usable)
    left = layout.inner()[[10, 10, 11, 11, 11], [19, 21, 19, 20, 21]]
    torch.testing.assert_close(filled[:, sensor], light[:, torch.tensor(left)].mean(1))
    assert filled.isfinite().all()


def test_a_sensor_with_nobody_around_gets_the_mean_of_its_face(light: Tensor) -> None:
    top = torch.tensor(layout.hexagonal("top"))
    usable = torch.ones_like(light, dtype=torch.bool)
    usable[0, top] = False
    usable[0, top[-1]] = True
    filled = NeighbourMean()(light, usable)
    assert float(filled[0, top[0]]) == pytest.approx(float(light[0, top[-1]]))
    usable[:] = False
    assert not NeighbourMean()(light, usable).any()


def test_more_hops_reach_further(light: Tensor) -> None:
    usable = torch.ones_like(light, dtype=torch.bool)
    image = layout.inner()
    block = torch.tensor(image[8:13, 18:23].ravel())
    own = int(image[10, 20])
    expected = (light[:, block].sum(1) - light[:, own]) / 24
    torch.testing.assert_close(NeighbourMean(2)(light, usable)[:, own], expected)


def test_places_and_solid_angles_are_those_of_the_geometry() -> None:
    uvw = np.array([[3.0, -20.0, 5.0], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(positions.uvw_of(xyz_of(uvw).numpy()), uvw, rtol=1e-9)
    # A disc seen from its axis: half of 1 minus the cosine of its half angle.
    place, normal, area = torch.zeros(1, 3), torch.tensor([[0.0, 0, 1]]), torch.tensor([16.6])
    for distance in (0.5, 5.0, 500.0):
        exact = 0.5 * (1 - distance / np.sqrt(distance**2 + 16.6 / np.pi))
        found = solid_angles(torch.tensor([[0.0, 0, distance]]), place, normal, area)
        assert float(found) == pytest.approx(exact, rel=1e-4)
    behind = solid_angles(torch.tensor([[0.0, 0, -5.0]]), place, normal, area)
    assert float(behind) == 0


def test_light_by_solid_angle_is_filled_exactly(shared_solid_angle: SolidAngleMean) -> None:
    fill = shared_solid_angle
    uvw = torch.tensor([[3.0, -20.0, 5.0]])
    omega = solid_angles(xyz_of(uvw), fill.place_S3, fill.normal_S3, fill.area_S)
    usable = torch.rand(omega.shape, generator=torch.Generator().manual_seed(3)) > 0.2
    given = torch.where(usable, omega * 1e5, 1e10)
    torch.testing.assert_close(fill(given, usable, uvw), omega * 1e5, rtol=1e-3, atol=1e-3)


def test_the_solid_angle_mean_by_hand(light: Tensor, shared_solid_angle: SolidAngleMean) -> None:
    fill = shared_solid_angle
    uvw = torch.tensor([[3.0, -20.0, 5.0], [10.0, -25.0, 3.0]])
    omega = solid_angles(xyz_of(uvw), fill.place_S3, fill.normal_S3, fill.area_S)
    usable = torch.rand(light.shape, generator=torch.Generator().manual_seed(3)) > 0.5
    filled = fill(light, usable, uvw)
    face, where = layout.face_of_sensor(), positions.positions()
    for sensor in (int(layout.inner()[60, 20]), 4092, 4350, 4600, 4745):
        near = np.linalg.norm(where - where[sensor], axis=1) <= 20
        near &= (face == face[sensor]) & (np.arange(layout.SENSORS) != sensor)
        used = usable & torch.tensor(near)
        for event in range(2):
            own_part = used[event]
            expected = (
                omega[event, sensor] * light[event, own_part].sum() / omega[event, own_part].sum()
            )
            assert float(filled[event, sensor]) == pytest.approx(float(expected), rel=1e-3)


def test_fillings_beat_the_mean_of_the_face(shared_solid_angle: SolidAngleMean) -> None:
    tables = shared_solid_angle
    where = torch.tensor([[0.0, 0.0, 5.0], [10.0, -30.0, 8.0], [-15.0, 40.0, 3.0]])
    npho = solid_angles(xyz_of(where), tables.place_S3, tables.normal_S3, tables.area_S) * 1e6
    usable = torch.rand(npho.shape, generator=torch.Generator().manual_seed(3)) > 0.05
    filled = NeighbourMean()(npho, usable)
    hidden = ~usable & (torch.arange(layout.SENSORS) < 4092)
    error = (filled - npho).abs()[hidden].mean()
    assert error < 0.5 * (npho - npho[:, :4092].mean(1, keepdim=True)).abs()[hidden].mean()
