"""Averages that a NaN cannot enter."""

from __future__ import annotations

import math

import pytest
import torch

from holdfast.training.loop.averages import DeviceSums, StepAverages, means


def test_means_are_weighted_and_begin_anew() -> None:
    readings = StepAverages()
    readings.add({"loss": torch.tensor(1.0), "accuracy": 0.5}, 3)
    readings.add({"loss": torch.tensor(5.0)}, 1)
    assert readings.take() == {"loss": pytest.approx(2.0), "accuracy": 0.5}
    readings.add({"loss": torch.tensor(7.0)})
    assert readings.take()["loss"] == 7.0


def test_what_is_not_finite_takes_no_part() -> None:
    readings = StepAverages()
    for value in (1.0, math.nan, 3.0, math.inf):
        readings.add({"loss": torch.tensor(value)})
    assert readings.take()["loss"] == pytest.approx(2.0)
    readings.add({"loss": torch.tensor(math.nan)})
    assert math.isnan(readings.take()["loss"])


def test_what_is_known_stays_known_until_something_newer_is() -> None:
    readings = StepAverages()
    readings.add({"loss": 2.0})
    readings.take()
    assert readings.take()["loss"] == 2.0


def test_sums_on_a_device_are_those_of_the_host() -> None:
    """Numbers that come together are one row; a name may come in several companies."""
    sums, readings = DeviceSums(), StepAverages()
    batches = [
        ({"loss": torch.tensor(1.0), "flows": torch.tensor(7)}, 3.0),
        ({"loss": torch.tensor(math.nan), "flows": torch.tensor(9)}, 1.0),
        ({"loss": torch.tensor(5.0), "flows": torch.tensor(8), "text": torch.tensor(2.0)}, 1.0),
        ({"text": torch.tensor(math.inf)}, 1.0),
        ({"nothing": torch.tensor(math.nan)}, 1.0),
    ]
    for values, weight in batches:
        sums.add(values, weight)
        readings.add(values, weight)
    names, rows = sums.take()
    found = means(names, rows.tolist())
    assert math.isnan(found.pop("nothing"))
    expected = dict(readings.take())
    assert math.isnan(expected.pop("nothing"))
    assert found == pytest.approx(expected) and found["loss"] == pytest.approx(2.0)
    assert not sums
