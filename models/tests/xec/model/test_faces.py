from __future__ import annotations

import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.xec.geometry import layout
from holdfast_models.xec.model.faces import Faces
from holdfast_models.xec.settings import EncoderSettings

EXTRA = range(4742, 4760)  # the dense sensors that no coarse image shows


def faces(**options) -> Faces:
    return Faces(EncoderSettings(encoder_dim=32, **options))


def numbered() -> torch.Tensor:
    """Every value names its sensor, in both channels."""
    return torch.arange(4760.0)[None, :, None].expand(1, -1, 2)


def test_every_image_shows_the_sensors_of_its_table():
    images = faces(outer_mode="split")(numbered())
    assert list(images) == ["inner", "outer_coarse", "outer_center", "us", "ds", "top", "bottom"]
    tables = (layout.inner(), layout.outer_coarse(), layout.outer_dense(), layout.sides("us"))
    for image, table in zip(images.values(), tables, strict=False):
        assert image[0, ..., 0].long().tolist() == table.tolist()
    assert images["top"][0, :, 1].long().tolist() == list(range(4596, 4669))


def test_a_sensor_shares_its_photons_among_its_fine_cells_and_keeps_its_time():
    outer = faces()(torch.ones(1, 4760, 2))["outer"][0]
    assert outer.shape == (45, 72, 2)
    assert outer[0, 0, 0] == pytest.approx(1 / 15)
    assert outer[15, 30, 0] == pytest.approx(1 / 6)
    assert outer[..., 0].sum() == pytest.approx(234, rel=1e-4)
    assert (outer[..., 1] == 1).all()


def test_sentinels_are_not_divided():
    valid = torch.ones(1, 4760, 2, dtype=torch.bool)
    valid[:, [4092, 4750], 0] = False
    x = torch.where(valid, 3.0, -1.0)
    outer = faces()(x, valid)["outer"][0, ..., 0]
    ids = torch.as_tensor(layout.outer_fine())
    assert (outer[(ids == 4092) | (ids == 4750)] == -1).all()
    assert (outer[(ids != 4092) & (ids != 4750)] > 0).all()


@pytest.mark.parametrize("options", [{}, {"outer_mode": "split"}, {"outer_fine_pool": (3, 3)}])
def test_each_dense_sensor_has_its_mask(options):
    cut = faces(**options)
    for sensor in EXTRA:
        hidden = torch.zeros(1, 4760, dtype=torch.bool)
        hidden[0, sensor] = True
        visible = cut.visible(hidden, torch.float32)
        gone = {name: int((one == 0).sum()) for name, one in visible.items()}
        image = "outer_center" if "outer_center" in gone else "outer"
        assert gone.pop(image) >= 1
        assert not any(gone.values())


def test_a_mask_goes_through_the_same_gather_as_the_values():
    hidden = torch.rand(2, 4760) < 0.3
    cut = faces()
    values = cut((~hidden).float()[..., None].expand(-1, -1, 2))
    for name, visible in cut.visible(hidden, torch.float32).items():
        assert ((values[name][..., :1] > 0) == (visible > 0)).all()


def test_pooling_averages_valid_values_and_hides_a_cell_with_any_hidden_one():
    cut = faces(outer_fine_pool=(3, 3))
    x = torch.rand(1, 4760, 2) + 1
    valid = torch.rand(1, 4760, 2) < 0.5
    valid[:, :, 0] = True
    x = torch.where(valid, x, -1.0)
    fine, pooled = faces()(x, valid)["outer"][0], cut(x, valid)["outer"][0]
    assert pooled.shape == (15, 24, 2)
    there = valid[0, torch.as_tensor(layout.outer_fine()), 1]
    for row in range(15):
        for column in range(24):
            window = slice(3 * row, 3 * row + 3), slice(3 * column, 3 * column + 3)
            times = fine[window][..., 1][there[window]]
            expected = times.mean() if len(times) else torch.tensor(-1.0)
            torch.testing.assert_close(pooled[row, column, 1], expected)
            torch.testing.assert_close(pooled[row, column, 0], fine[window][..., 0].mean())
    hidden = torch.zeros(1, 4760, dtype=torch.bool)
    hidden[0, 4092] = True  # rows 0 to 4, columns 0 to 2
    visible = cut.visible(hidden, torch.float32)["outer"][0, ..., 0]
    assert (visible == 0).nonzero().tolist() == [[0, 0], [1, 0]]


def test_a_window_that_does_not_divide_the_image_drops_the_last_row_and_no_sensor():
    cut = faces(outer_fine_pool=(2, 2))
    assert cut.shapes["outer"] == (22, 36)
    assert cut.outer_covered_QK.sum() == 45 * 72
    assert int(cut.outer_cells_QK.max()) == 22 * 36 - 1
    with pytest.raises(HoldfastError, match=r"outer_fine_pool \[20, 30\] leaves 2 x 2 cells"):
        faces(outer_fine_pool=(20, 30))


@pytest.mark.parametrize("pool", [None, (3, 3)])
def test_back_to_sensors_photons_are_summed_and_times_averaged(pool):
    cut = faces(outer_fine_pool=pool)
    rows, columns = cut.shapes["outer"]
    cells = torch.rand(2, rows * columns, 2)
    fine = torch.nn.functional.interpolate(
        cells.mT.unflatten(-1, (rows, columns)), (45, 72), mode="nearest"
    )
    found = cut.outer_sensors(cells, ("npho", "time"))
    ids = torch.as_tensor(layout.outer_fine())
    for place, sensor in enumerate(layout.sensors_of("outer").tolist()):
        own_part = fine[:, :, ids == sensor]
        torch.testing.assert_close(found[:, place, 0], own_part[:, 0].sum(-1))
        torch.testing.assert_close(found[:, place, 1], own_part[:, 1].mean(-1))
    torch.testing.assert_close(cut.outer_sensors(cells[..., 1:], ("time",)), found[..., 1:])


def test_values_come_back_to_their_sensors():
    x = torch.rand(2, 4760, 2)
    for mode in ("finegrid", "split"):
        cut = faces(outer_mode=mode)
        parts = {name: one.flatten(1, -2) for name, one in cut(x).items()}
        if mode == "finegrid":
            parts["outer"] = cut.outer_sensors(parts["outer"], ("npho", "time"))
        torch.testing.assert_close(cut.to_sensors(parts), x)
        own = cut.by_face(x[..., 0])
        torch.testing.assert_close(
            cut.to_sensors({name: one[..., None] for name, one in own.items()})[..., 0], x[..., 0]
        )
