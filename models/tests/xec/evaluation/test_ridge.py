from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast import HoldfastError
from holdfast_models.xec.data.synthetic import generate
from holdfast_models.xec.evaluation.ridge import FEATURES, Ridge, arrival_times, baseline, features
from holdfast_models.xec.settings import SynthSettings

REFERENCE = {
    "energy": ("mean", 15.3), "energy, relative": ("ridge", 1.36),
    "same above 45 MeV": ("ridge", 1.22), "u": ("ridge", 0.65), "v": ("ridge", 0.59),
    "w": ("ridge", 0.60), "theta": ("ridge", 19.2), "timing, true place known": ("ridge", 31.0),
}  # fmt: skip
"""What the specification measured on such events."""

MakeEvents = Callable[..., dict[str, Tensor]]


def test_there_are_22_features_and_dead_sensors_do_not_move_them(make_events: MakeEvents) -> None:
    assert len(FEATURES) == len(set(FEATURES)) == 22
    whole, holed = (features(make_events(40, dead=dead)["npho"]) for dead in (0, 60))
    assert whole.shape == (40, 22) and np.isfinite(holed).all()
    at = FEATURES.index("log total")
    assert np.abs(whole[:, at] - holed[:, at]).max() < 0.06, "light of dead sensors is filled in"
    assert np.median(np.abs(whole - holed)[:, :2]) < 0.05, "cm"


def test_dark_and_dead_events_have_finite_features() -> None:
    npho = torch.zeros(3, 4760)
    npho[1], npho[2] = 1e10, -5.0
    assert np.isfinite(features(npho)).all()


def test_the_ridge_beats_the_mean_and_says_so(make_events: MakeEvents) -> None:
    train, test = make_events(200, dead=60), make_events(100, seed=2, dead=60)
    found = baseline(train, test)
    rows = {row.quantity: row for row in found.rows}
    assert (found.trained, found.tested) == (200, 100)
    assert rows["energy"].unit == "MeV" and 10 < rows["energy"].mean < 20
    assert rows["energy, relative"].ridge < 6 < 20 < rows["energy, relative"].mean
    for name, best in (("u", 0.6), ("v", 0.6), ("w", 0.6)):
        assert rows[name].ridge < best < rows[name].mean
    assert (
        rows["timing, true place known"].ridge < 15 < 1000 < rows["timing, true place known"].mean
    )
    assert rows["theta"].ridge == pytest.approx(rows["theta"].mean, rel=0.35), "nothing to learn"
    json.dumps(found.plain())
    assert len(found.lines()) == 2 + len(found.rows)


def test_times_far_off_do_not_count(make_events: MakeEvents) -> None:
    events = make_events(20)
    clean = arrival_times(events) - events["timing"].numpy()
    events["time"][:, ::10] += 30e-9
    events["time"][:, 1::10] = float("nan")
    moved = arrival_times(events) - events["timing"].numpy()
    assert np.abs(clean).max() < 30e-12 and np.abs(moved).max() < 60e-12


def test_predictions_are_columns_beside_the_truth(make_events: MakeEvents) -> None:
    train = make_events(100)
    columns = Ridge.fit(train).predict(train)
    np.testing.assert_allclose(columns["true_energy"], train["energy"].double(), rtol=1e-9)
    np.testing.assert_allclose(columns["true_w"], train["uvwFI"][:, 2].double())
    assert {len(one) for one in columns.values()} == {100}


def test_energies_without_truth_are_refused(make_events: MakeEvents) -> None:
    events = make_events(10)
    events["energy"][3] = 0
    with pytest.raises(HoldfastError, match="1 of 10 events"):
        Ridge.fit(events)


def test_the_table_of_the_specification_on_few_events() -> None:
    events = generate(SynthSettings(seed=1), 512)
    halves = [{name: one[part::2] for name, one in events.items()} for part in (0, 1)]
    rows = {row.quantity: row for row in baseline(*halves).rows}
    for quantity, (column, expected) in REFERENCE.items():
        # 256 events to fit 23 numbers to, and as many to measure.
        assert getattr(rows[quantity], column) == pytest.approx(expected, rel=0.35), quantity


@pytest.mark.slow
def test_the_table_of_the_specification() -> None:
    events = generate(SynthSettings(seed=1), 2560)
    halves = [{name: one[part::2] for name, one in events.items()} for part in (0, 1)]
    rows = {row.quantity: row for row in baseline(*halves).rows}
    for quantity, (column, expected) in REFERENCE.items():
        assert getattr(rows[quantity], column) == pytest.approx(expected, rel=0.15), quantity
    for quantity, expected in {"u": 15.3, "v": 46.4, "w": 3.3, "theta": 19.3}.items():
        assert rows[quantity].mean == pytest.approx(expected, rel=0.15), quantity
    assert rows["timing, true place known"].mean == pytest.approx(2100, rel=0.15)
