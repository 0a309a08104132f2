from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.run.thinning import INCIDENTS, REACH, kept_rows

pytestmark = pytest.mark.timeout(30)


def rows_with(count: int, bad: Any, column: str = "grad_bad") -> Any:
    rows = np.full(count, np.nan, [("step", "<f8"), *((name, "<f4") for name in INCIDENTS)])
    rows["step"] = np.arange(count)
    rows[column] = np.isin(rows["step"], bad)
    return rows


@settings(deadline=None)
@given(st.integers(0, 300), st.lists(st.integers(0, 300)))
def test_at_most_five_eighths_stay_in_order(count: int, bad: list[int]) -> None:
    kept = kept_rows(rows_with(count, bad))
    assert len(kept) <= count * 5 / 8 + 1
    assert len(kept) >= count / 2
    assert np.all(np.diff(kept) > 0)
    if count > 1:
        assert len(kept) < count


def test_a_quiet_segment_keeps_every_second_row() -> None:
    assert kept_rows(rows_with(9, [])).tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("column", INCIDENTS)
def test_an_incident_keeps_its_sixteen_neighbours(column: str) -> None:
    kept = set(kept_rows(rows_with(1000, [501], column)).tolist())
    assert kept >= set(range(501 - REACH, 501 + REACH + 1))
    assert len(kept) == 17 + (1000 - 17 + 1) // 2


def test_incidents_at_the_ends_are_kept() -> None:
    kept = set(kept_rows(rows_with(400, [0, 399])).tolist())
    assert kept >= {*range(0, 9), *range(391, 400)}


def test_when_everything_is_bad_the_first_rows_of_each_trouble_stay() -> None:
    begins = [101, 301, 501]
    bad = np.concatenate([np.arange(b, b + 150) for b in begins])
    kept = kept_rows(rows_with(1000, bad))
    assert set(begins) <= set(kept.tolist())
    assert len(kept) == 250 + 375


def test_incidents_survive_thinning_again_and_again() -> None:
    rows = rows_with(100_000, [12_345, 77_777])
    for _ in range(10):
        rows = rows[kept_rows(rows)]
    assert len(rows) < 200
    assert {12_345, 77_777} <= set(rows["step"][rows["grad_bad"] > 0].tolist())
