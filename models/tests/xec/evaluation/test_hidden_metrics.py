from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast_models.xec.evaluation.hidden_metrics import hidden_metrics
from holdfast_models.xec.geometry.layout import FACES


@pytest.fixture
def rows() -> dict[str, Tensor]:
    """Three events; a time counts in a quarter of the hidden sensors."""
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randint(4, 40, (3, 6), generator=generator).float() * 4
    found = {"n_masked": hidden, "n_maskable": hidden * 2, "n_time_valid": hidden}
    for channel, count in (("npho", hidden), ("time", hidden / 4)):
        found[f"count_{channel}"] = count
        found[f"abs_{channel}"] = torch.rand(3, 6, generator=generator) * count
        found[f"square_{channel}"] = torch.rand(3, 6, generator=generator) * count
    return found


def test_every_error_is_divided_by_the_count_of_its_own_channel(rows: dict[str, Tensor]) -> None:
    found = hidden_metrics(rows)
    for channel in ("npho", "time"):
        count, absolute, square = (
            rows[f"{of}_{channel}"].sum(0) for of in ("count", "abs", "square")
        )
        for code, face in enumerate(FACES):
            assert found[f"mae_{face}_{channel}"] == pytest.approx(
                float(absolute[code] / count[code])
            )
            rmse = float((square[code] / count[code]).sqrt())
            assert found[f"rmse_{face}_{channel}"] == pytest.approx(rmse)
        assert found[f"mae_{channel}"] == pytest.approx(float(absolute.sum() / count.sum()))
        assert found[f"rmse_{channel}"] == pytest.approx(float((square.sum() / count.sum()).sqrt()))


def test_how_much_was_hidden(rows: dict[str, Tensor]) -> None:
    found = hidden_metrics(rows)
    assert found["actual_mask_ratio"] == pytest.approx(0.5)
    assert found["n_masked_total"] == float(rows["n_masked"].sum())
    assert found["time_valid_ratio"] == pytest.approx(float(rows["n_masked"].sum()) / 3 / 4760)


def test_a_model_of_photons_alone_has_no_numbers_of_time(rows: dict[str, Tensor]) -> None:
    found = hidden_metrics({name: one for name, one in rows.items() if not name.endswith("_time")})
    assert "mae_inner_npho" in found and not any(name.endswith("_time") for name in found)


def test_a_face_without_hidden_sensors_is_zero_and_no_division(rows: dict[str, Tensor]) -> None:
    for name in rows:
        rows[name][:, 2] = 0
    assert hidden_metrics(rows)["rmse_ds_npho"] == 0
    nothing = {name: one[:0] for name, one in rows.items()}
    assert set(hidden_metrics(nothing)) == set(hidden_metrics(rows))
