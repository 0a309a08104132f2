from __future__ import annotations

import pytest
import torch

from holdfast_models.energy_flow.model.coordinates import (
    cells_N,
    denormalise,
    noise_at,
    noise_factors_3,
    normalise,
    start_S3,
)
from holdfast_models.energy_flow.model.settings import FlowSettings, LatticeSettings

LATTICE = LatticeSettings(width=5, height=3, depth=6)


def test_the_corners_of_the_box_are_at_plus_and_minus_one():
    corners = torch.tensor([[0.0, 0.0, 0.0], [4.0, 2.0, 6.0], [2.0, 1.0, 3.0]])
    expected = torch.tensor([[-1.0] * 3, [1.0] * 3, [0.0] * 3])
    assert torch.equal(normalise(corners, LATTICE), expected)


def test_coordinates_come_back_from_their_normalised_form():
    place_N3 = torch.rand(50, 3) * torch.tensor([4.0, 2.0, 6.0])
    back_N3 = denormalise(normalise(place_N3, LATTICE), LATTICE)
    torch.testing.assert_close(back_N3, place_N3, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("depth", "z"), [(6, 0.0), (5, -1 / 5), (2, 0.0), (3, -1 / 3)])
def test_flows_start_in_the_middle_plane(depth, z):
    lattice = LatticeSettings(width=5, height=3, depth=depth)
    z_S = start_S3(lattice)[:, 2]
    torch.testing.assert_close(z_S, torch.full((15,), z))


def test_the_start_of_a_cell_is_counted_row_by_row_and_lies_in_that_cell():
    p_S3 = start_S3(LATTICE)
    assert torch.equal(p_S3[7, :2], torch.tensor([0.0, 0.0]))  # y 1, x 2 of five
    assert torch.equal(cells_N(p_S3, LATTICE), torch.arange(15))


def test_the_start_of_a_large_lattice_lies_in_its_cells():
    lattice = LatticeSettings(width=100, height=80, depth=5)
    assert torch.equal(cells_N(start_S3(lattice), lattice), torch.arange(8000))


def test_start_has_the_dtype_and_device_that_are_asked_for():
    p_S3 = start_S3(LATTICE, "meta", torch.float64)
    assert (p_S3.dtype, p_S3.device.type, p_S3.shape) == (torch.float64, "meta", (15, 3))


def test_positions_are_quantised_to_the_nearest_cell_and_never_outside():
    p_N3 = normalise(torch.tensor([[1.4, 0.6, 3.0], [1.6, 1.4, 0.0]]), LATTICE)
    assert cells_N(p_N3, LATTICE).tolist() == [1 * 5 + 1, 1 * 5 + 2]
    outside_N3 = torch.tensor([[-1.7, 1.9, 0.0], [1.5, -3.0, 0.0]])
    assert cells_N(outside_N3, LATTICE).tolist() == [2 * 5 + 0, 0 * 5 + 4]


def test_noise_of_one_cell_moves_by_one_cell_on_every_axis():
    factors_3 = noise_factors_3(LATTICE)
    here_3 = torch.tensor([1.0, 1.0, 1.0])
    moved_3 = denormalise(normalise(here_3, LATTICE) + factors_3, LATTICE)
    torch.testing.assert_close(moved_3, torch.full((3,), 2.0))
    assert noise_factors_3(LATTICE, on_z=False).tolist() == [0.5, 1.0, 0.0]


def test_noise_falls_to_nothing_and_stays_there():
    settings = FlowSettings(noise_cells=0.2, noise_anneal=10)
    assert [noise_at(step, settings) for step in (0, 5, 10, 11)] == [0.2, 0.1, 0.0, 0.0]
