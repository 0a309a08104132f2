"""A row that has arrived from a device: the short way to read it gives the columns of the long."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from holdfast.probes.gradients import DeviceReading
from holdfast.probes.norm_rows import Layout
from holdfast.probes.step_record import StepRecord

NAN, INF = math.nan, math.inf
SUMS = [4.0, 9.0, 16.0, 25.0]
"""Squares of four blocks: the second tensor has two of them."""
ANSWER = [0.5, 0.9, 7.0, 70.0, 0.0, 1.0]


def arrived(values: list[float], *, planned: bool, scaled: bool) -> StepRecord:
    empty = torch.empty(0)
    layout = Layout([1, 2, 1], np.array([0, 1, 3]), 4, 4, (empty, empty, empty))
    record = StepRecord(5, 0)
    record.planned, record.scaled, record.acted, record.losses_decide = planned, scaled, True, True
    record.positions, record.layers = range(3), 3
    flag = torch.zeros(())
    record.measured = DeviceReading(empty, flag, 3, True, layout, None, torch.ones(2))
    record.row["skipped"] = 0.0
    record.arrive(np.array(values))
    return record


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("loss", [0.25, NAN, -INF])
@pytest.mark.parametrize("first", [4.0, NAN, INF])
@pytest.mark.parametrize("bits", [0.0, 1.0, 2.0, 7.0])
def test_both_ways_fill_the_same_columns(
    scaled: bool, loss: float, first: float, bits: float
) -> None:
    row = [first, *SUMS[1:], loss, *ANSWER[:4], bits, 1.0, *([1024.0, 0.0] if scaled else [])]
    short, long = (arrived(row, planned=planned, scaled=scaled) for planned in (True, False))
    np.testing.assert_allclose([*short.row.values()], [*long.row.values()], rtol=1e-15)
    np.testing.assert_array_equal(short.norms_by_layer(), long.norms_by_layer())
    facts = ("bad", "extreme", "outlier", "loss_bad", "skipped")
    assert [getattr(short, name) for name in facts] == [getattr(long, name) for name in facts]


def test_an_ordinary_row() -> None:
    record = arrived([*SUMS, 0.25, *ANSWER], planned=True, scaled=False)
    assert record.row["grad_norm"] == pytest.approx(math.sqrt(sum(SUMS)))
    assert record.row["loss"] == 0.25 and record.row["norm_limit"] == 70.0
    assert record.norms_by_layer().tolist() == [2.0, 5.0, 5.0]
