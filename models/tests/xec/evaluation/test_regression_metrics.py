from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.xec.evaluation.regression_metrics import opening_angle, regression_metrics
from holdfast_models.xec.geometry.coordinates import direction_of, xyz_of

NAMES = ("theta", "phi", "energy", "timing", "u", "v", "w")
WIDTHS = {"theta": 3.0, "phi": 5.0, "energy": 5e-4, "timing": 4e-11, "u": 0.3, "v": 0.4, "w": 0.5}


def make_rows(count: int, *, seed: int = 0) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    low = {"theta": 60, "phi": -50, "energy": 0.015, "timing": -3e-9, "u": -20, "v": -60, "w": 1}
    high = {"theta": 120, "phi": 50, "energy": 0.06, "timing": 3e-9, "u": 20, "v": 60, "w": 20}
    rows: dict[str, Any] = {"run_id": np.ones(count), "event_id": np.arange(count)}
    for name in NAMES:
        rows[f"true_{name}"] = generator.uniform(low[name], high[name], count)
        off = generator.normal(WIDTHS[name] / 10, WIDTHS[name], count)
        rows[f"pred_{name}"] = rows[f"true_{name}"] + off
    return rows


def p68(values: Any) -> float:
    return float(np.percentile(np.abs(values), 68))


def test_every_number_is_its_formula() -> None:
    rows = make_rows(3000)
    found = regression_metrics({name: torch.from_numpy(one) for name, one in rows.items()})
    off = {name: rows[f"pred_{name}"] - rows[f"true_{name}"] for name in NAMES}
    for name in ("theta", "phi"):
        residual = off[name]
        assert found[f"{name}_bias"] == pytest.approx(residual.mean())
        assert found[f"{name}_rms"] == pytest.approx(np.sqrt((residual**2).mean()))
        third = ((residual - residual.mean()) ** 3).mean() / residual.std() ** 3
        assert found[f"{name}_skew"] == pytest.approx(third)
    vectors = [
        direction_of(np.stack((rows[f"{side}_theta"], rows[f"{side}_phi"]), axis=1)).numpy()
        for side in ("pred", "true")
    ]
    cosine = (vectors[0] * vectors[1]).sum(1)
    assert found["angle_resolution_68pct"] == pytest.approx(p68(np.degrees(np.arccos(cosine))))
    assert found["val_resolution_deg"] == found["angle_resolution_68pct"]
    assert found["cos"] == pytest.approx((1 - cosine).mean())
    assert found["energy_bias"] == pytest.approx(off["energy"].mean())
    assert found["energy_res_68pct"] == pytest.approx(p68(off["energy"]))
    assert found["energy_rel_res_68pct"] == pytest.approx(p68(off["energy"] / rows["true_energy"]))
    assert found["energy_core_sigma"] == pytest.approx(5e-4, rel=0.06)
    assert found["energy_eff_sigma"] == pytest.approx(5e-4, rel=0.06)
    assert found["timing_bias"] == pytest.approx(off["timing"].mean() * 1e12), "in ps"
    assert found["timing_res_68pct"] == pytest.approx(p68(off["timing"]) * 1e12)
    for name in "uvw":
        assert found[f"uvw_{name}_bias"] == pytest.approx(off[name].mean())
        assert found[f"uvw_{name}_res_68pct"] == pytest.approx(p68(off[name]))
    places = [
        xyz_of(np.stack([rows[f"{side}_{n}"] for n in "uvw"], 1)).numpy()
        for side in ("pred", "true")
    ]
    distance = np.linalg.norm(places[0] - places[1], axis=1)
    assert found["uvw_dist_68pct"] == pytest.approx(p68(distance))
    size = np.linalg.norm(places[0], axis=1) * np.linalg.norm(places[1], axis=1)
    straight = (places[0] * places[1]).sum(1) / size
    assert found["cos_pos"] == pytest.approx((1 - straight).mean(), rel=1e-6)
    assert found["events"] == 3000 and found["nonfinite_rows"] == 0


def test_rows_of_all_ranks_are_measured_at_once() -> None:
    rows = make_rows(1000)
    whole = regression_metrics(rows)
    parts = [np.arange(1000) < 137, np.arange(1000) >= 137]
    merged = {
        name: np.concatenate([one[part] for part in parts[::-1]]) for name, one in rows.items()
    }
    assert regression_metrics(merged) == pytest.approx(whole)
    # What an average over ranks would give is another number.
    apart = [regression_metrics({n: one[part] for n, one in rows.items()}) for part in parts]
    mean = np.mean([one["uvw_u_res_68pct"] for one in apart])
    assert abs(mean - whole["uvw_u_res_68pct"]) > 1e-6


def test_rows_that_are_not_finite_are_counted_and_skipped() -> None:
    rows = make_rows(500)
    clean = regression_metrics({name: one[3:] for name, one in rows.items()})
    rows["pred_energy"][0] = np.nan
    rows["pred_energy"][1] = np.inf
    rows["true_energy"][2] = 1e10  # no value, in files
    found = regression_metrics(rows)
    assert found["nonfinite_rows"] == 3 and found["events"] == 500
    assert found["energy_res_68pct"] == clean["energy_res_68pct"]
    assert math.isfinite(found["uvw_u_bias"]), "other tasks keep these rows"


@pytest.mark.parametrize("count", [0, 1, 2])
def test_which_numbers_there_are_does_not_depend_on_the_rows(count: int) -> None:
    # Ranks with other keys would wait for each other for ever.
    full = make_rows(50) | {"energy_log_var": np.zeros(50)}
    few = {name: one[:count] for name, one in full.items()}
    assert set(regression_metrics(few)) == set(regression_metrics(full))
    assert set(regression_metrics({"pred_u": np.zeros(2)})) == {"events", "nonfinite_rows"}


@pytest.mark.parametrize("name", ["energy_log_var", "pred_energy_log_var"])
def test_a_calibrated_uncertainty_has_the_ratio_one(name: str) -> None:
    rows = make_rows(4000)
    rows[name] = np.full(4000, 2 * math.log(WIDTHS["energy"]))
    found = regression_metrics(rows)
    assert found["energy_pred_std_mean"] == pytest.approx(5e-4)
    assert found["energy_calibration_ratio"] == pytest.approx(1, rel=0.05)
    rows[name] += 2 * math.log(3)
    assert regression_metrics(rows)["energy_calibration_ratio"] == pytest.approx(3, rel=0.05)


def test_columns_of_different_length_are_refused() -> None:
    rows = make_rows(10)
    rows["pred_u"] = np.concatenate((rows["pred_u"], rows["pred_u"]))
    with pytest.raises(HoldfastError, match=r"'pred_u': 20"):
        regression_metrics(rows)


def test_angles_go_the_short_way_round_and_keep_their_digits() -> None:
    columns = {
        "true_theta": np.array([90.0, 90.0]), "pred_theta": np.array([90.0, 90.0 + 1e-7]),
        "true_phi": np.array([179.0, 0.0]), "pred_phi": np.array([-179.0, 0.0]),
    }  # fmt: skip
    np.testing.assert_allclose(opening_angle(columns), [2.0, 1e-7], rtol=1e-6)
    assert regression_metrics(columns)["phi_bias"] == pytest.approx(1.0)


def test_classes_have_an_accuracy() -> None:
    rows = {"pred_n_gamma": torch.tensor([0, 1, 2, 2]), "true_n_gamma": torch.tensor([0, 1, 1, 2])}
    assert regression_metrics(rows)["n_gamma_accuracy"] == 0.75
