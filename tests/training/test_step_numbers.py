from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.training.loop.step_numbers import (
    Tick,
    fields,
    figure,
    fitted,
    pace,
    percent,
    size,
    span,
)

EVERYTHING = Tick(120, 1000, 2, 5, 2.31, 1234.5, 0.12, 3.14e9, 3, 3e-4, 1.2345)


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_any_number_is_short(value):
    assert 1 <= len(figure(value)) <= 11


@given(st.floats(min_value=1e-3, max_value=1e7))
def test_a_figure_is_right_to_four_digits(value):
    assert float(figure(value)) == pytest.approx(value, rel=6e-4)


@given(st.floats(min_value=0, max_value=1e12))
def test_rates_sizes_and_spans_keep_their_width(value):
    assert len(pace(value)) <= 9 and len(size(value)) <= 9 and len(span(value)) <= 16
    assert "1000k" not in pace(value) and "1000 MB" not in size(value)


def test_all_is_not_done_before_the_end():
    assert [percent(share) for share in (0, 0.005, 0.124, 0.999, 1, 1.2)] == [
        "0 %", "0 %", "12 %", "99 %", "100 %", "120 %",
    ]  # fmt: skip


@given(st.integers(1, 200))
def test_what_is_kept_fits_and_stays_in_order(width):
    everything = fields(EVERYTHING, left=100.0)
    kept = fitted(everything, width)
    assert len("  ".join(field.text for field in kept)) <= width or len(kept) == 1
    assert kept == [field for field in everything if field in kept]
    assert kept[0].text.startswith("step")
