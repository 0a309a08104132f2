"""Images of faces: every sensor once, neighbours in space are neighbours in the image."""

import numpy as np
import pytest

from holdfast_models.xec.geometry import layout, neighbours, survey
from holdfast_models.xec.geometry.coordinates import angles_of, direction_of, in_xenon, xyz_of
from holdfast_models.xec.geometry.positions import R_INNER, areas, normals, positions, uvw_of

# Image, and the distances between neighbours along its rows and columns in cm.
IMAGES = {
    "inner": (layout.inner, 1.53, 1.51),
    "us": (layout.IMAGES["us"], 9.5, 7.1),
    "ds": (layout.IMAGES["ds"], 9.5, 7.1),
    "outer coarse": (layout.outer_coarse, 10.4, 9.7),
    "outer dense": (layout.outer_dense, 6.2, 6.5),
}


def test_every_formula_agrees_with_the_survey() -> None:
    checks = survey.compare()
    assert len(checks) == 10
    assert [one for one in checks if not one.agrees] == []


def test_a_sensor_that_moved_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = survey.surveyed()
    table["positions_xyz"][17][0] += 0.001
    monkeypatch.setattr(survey, "surveyed", lambda: table)
    assert [one.what for one in survey.compare() if not one.agrees] == ["positions"]


@pytest.mark.parametrize("name", IMAGES)
def test_adjacent_cells_are_adjacent_sensors(name: str) -> None:
    """17.1: an outer face that is read row by row is scrambled."""
    image, pitch_rows, pitch_columns = IMAGES[name]
    where = positions()[image()]
    if name == "outer coarse":
        # Twelve sensors have moved into the dense patch.
        moved = np.isin(image(), layout.outer_dense())
        where = np.where(moved[..., None], np.nan, where)
    down = np.linalg.norm(where[1:] - where[:-1], axis=-1)
    across = np.linalg.norm(where[:, 1:] - where[:, :-1], axis=-1)
    assert np.nanmax(down) < 1.6 * pitch_rows
    assert np.nanmax(across) < 1.6 * pitch_columns


def test_the_outer_face_read_row_by_row_would_fail_that_test() -> None:
    wrong = positions()[np.arange(4092, 4308).reshape(9, 24)]
    assert np.linalg.norm(wrong[:, 1:] - wrong[:, :-1], axis=-1).max() > 1.6 * 10.4


def test_all_sensors_belong_to_one_face() -> None:
    counts = [len(layout.sensors_of(face)) for face in layout.FACES]
    assert counts == [4092, 144, 144, 234, 73, 73]
    assert sum(counts) == layout.SENSORS
    assert np.array_equal(np.bincount(layout.face_of_sensor()), counts)


def test_the_fine_image_holds_all_outer_sensors_in_their_place() -> None:
    fine = layout.outer_fine()
    assert fine.shape == (45, 72)
    assert np.array_equal(np.unique(fine), layout.sensors_of("outer"))
    counts = layout.fine_cells()[layout.sensors_of("outer")]
    assert set(counts) == {6, 15}
    assert (counts == 6).sum() == 30
    # A cell is within half a coarse cell of its sensor, in z and along the arc.
    where = positions()
    z = -41.424 + 10.356 * ((np.arange(45) + 0.5) / 5 - 0.5)
    assert np.abs(where[fine][..., 2] - z[:, None]).max() < 10.356 / 2 + 1.1


def test_hexagonal_links_are_true_neighbours() -> None:
    """17.1: a rule of even and odd rows gets 84 links wrong."""
    links = neighbours.hexagonal_links()
    present = links[:, 1:] != neighbours.ABSENT
    assert present.sum() == 366
    assert present.all(axis=1).sum() == 40
    where = positions()[layout.hexagonal("top")]
    for node, slots in enumerate(links):
        assert slots[0] == node
        for other in slots[1:][slots[1:] != neighbours.ABSENT]:
            assert np.linalg.norm(where[node] - where[other]) < 7.6
            assert node in links[other]


def test_steps_on_faces() -> None:
    one, two = neighbours.within_hops(1), neighbours.within_hops(2)
    middle = layout.inner()[40, 20]
    assert (one[middle] >= 0).sum() == 8
    assert (two[middle] >= 0).sum() == 24
    face = layout.face_of_sensor()
    linked = two >= 0
    assert (face[two][linked] == np.broadcast_to(face[:, None], two.shape)[linked]).all()


def test_nearest_sensors_are_nearest() -> None:
    found = neighbours.nearest(16)
    where = positions()
    for sensor in (0, 2000, 4200, 4745, 4759):
        distance = np.linalg.norm(where - where[sensor], axis=1)
        expected = np.sort(distance)[1:17]
        assert np.allclose(distance[found[sensor]], expected)
        assert sensor not in found[sensor]


def test_normals_look_into_the_xenon() -> None:
    inside = positions() + 0.5 * normals()
    near_edge = positions() + 0.01 * normals()
    assert in_xenon(inside).float().mean() > 0.95  # sensors in corners look past an edge
    assert np.allclose(np.linalg.norm(normals(), axis=1), 1)
    assert not np.allclose(near_edge, inside)
    assert set(np.round(areas(), 3)) == {1.392, 16.6}


def test_coordinates_and_angles_turn_back() -> None:
    rng = np.random.default_rng(0)
    uvw = rng.uniform((-23, -66, 0), (23, 66, 30), (100, 3))
    assert np.allclose(uvw_of(xyz_of(uvw).numpy()), uvw)
    assert np.allclose(xyz_of(np.zeros(3)), (-R_INNER, 0, 0))
    angles = rng.uniform((10, -170), (170, 170), (100, 2))
    assert np.allclose(angles_of(direction_of(angles)), angles)
