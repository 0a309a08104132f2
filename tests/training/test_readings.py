"""Averages that a NaN cannot enter."""

from __future__ import annotations

import math

import pytest
import torch

from holdfast.training.readings import Readings


def test_means_are_weighted_and_begin_anew() -> None:
    readings = Readings()
    readings.add({"loss": torch.tensor(1.0), "accuracy": 0.5}, 3)
    readings.add({"loss": torch.tensor(5.0)}, 1)
    assert readings.take() == {"loss": pytest.approx(2.0), "accuracy": 0.5}
    readings.add({"loss": torch.tensor(7.0)})
    assert readings.take()["loss"] == 7.0


def test_what_is_not_finite_takes_no_part() -> None:
    readings = Readings()
    for value in (1.0, math.nan, 3.0, math.inf):
        readings.add({"loss": torch.tensor(value)})
    assert readings.take()["loss"] == pytest.approx(2.0)
    readings.add({"loss": torch.tensor(math.nan)})
    assert math.isnan(readings.take()["loss"])


def test_what_is_known_stays_known_until_something_newer_is() -> None:
    readings = Readings()
    readings.add({"loss": 2.0})
    readings.take()
    assert readings.take()["loss"] == 2.0
