from __future__ import annotations

import json

import numpy as np
import pytest

from holdfast_models.xec.evaluation.scoring import score


def test_errors_by_face_and_decade_are_those_by_hand() -> None:
    truth = np.array([0.0, 5.0, 50.0, 500.0, 5e3, 5e4, 5.0])
    better, worse = truth + np.array([1, -1, 2, 2, -2, 2, 3]), truth * 1.1 + 1
    face = np.array([0, 0, 1, 1, 2, 3, 0])
    event = np.array([7, 7, 7, 8, 8, 9, 9])
    found = score(truth, {"good": better, "bad": worse}, face, event)
    good = found.of("good")
    assert found.predictors() == ["good", "bad"]
    assert good["inner"].sensors == 3
    assert good["inner"].mae == pytest.approx(5 / 3)
    assert good["inner"].rmse == pytest.approx(np.sqrt(11 / 3))
    assert good["inner"].bias == pytest.approx(1.0)
    assert good["npho 1 - 10"].sensors == 2 and good["npho 1 - 10"].bias == pytest.approx(1.0)
    assert [good[f"npho {name}"].sensors for name in ("< 1", "> 10 k")] == [1, 1]
    assert good["top"].sensors == 0 and np.isnan(good["top"].mae)
    assert good["all"].sensors == 7 and good["all"].mae == pytest.approx(13 / 7)
    assert found.of("bad")["all"].mae > good["all"].mae
    assert len(found.lines()) == 1 + len(found.rows)
    plain = json.loads(json.dumps(found.plain(), allow_nan=False))
    assert plain[0]["predictor"] == "good" and plain[0]["mae_error"] > 0


def test_events_are_drawn_not_sensors() -> None:
    generator = np.random.default_rng(1)
    event = np.repeat(np.arange(100), 50)
    shared = generator.normal(size=100)[event]  # all sensors of an event are off alike
    truth = np.full(5000, 50.0)
    found = score(truth, {"one": truth + shared}, np.zeros(5000, dtype=int), event).of("one")["all"]
    assert found.errors[2] == pytest.approx(0.1, rel=0.3), "of 100 events, not of 5000 sensors"


def test_nothing_hidden_is_no_error() -> None:
    none = np.zeros(0)
    found = score(none, {"one": none}, none.astype(int), none.astype(int))
    assert found.of("one")["all"].sensors == 0 and len(found.lines()) > 1
