from __future__ import annotations

import numpy as np
import pytest

from holdfast.report.html.axes import (
    Axis,
    step_axis,
    step_ticks,
    unit_for,
    value_axis,
)
from holdfast.report.html.chart import Chart, ChartLine, StepMarks
from holdfast.report.html.curves import bin_means, condense, spread
from holdfast.report.html.heatmap import common_prefix

NAN = np.nan


def test_a_short_curve_stays_as_it_is():
    x, y = np.arange(100.0), np.arange(100.0)
    drawn = condense(x, y, 50)
    assert np.array_equal(drawn.x, x) and np.array_equal(drawn.y, y) and drawn.middle is None


@pytest.mark.parametrize("seed", range(5))
def test_every_extreme_of_a_long_curve_is_kept(seed):
    noise = np.random.default_rng(seed)
    count, columns = 50_000, 120
    x = np.sort(noise.integers(0, 10**6, count)).astype(np.float64)
    y = noise.standard_normal(count)
    y[noise.integers(0, count, 2000)] = noise.choice([NAN, np.inf, -np.inf], 2000)
    drawn = condense(x, y, columns)
    assert len(drawn.x) <= 2 * columns and np.all(np.diff(drawn.x) >= 0)
    column = np.minimum((x - x[0]) / (x[-1] - x[0]) * columns, columns - 1).astype(int)
    place = np.minimum((drawn.x - x[0]) / (x[-1] - x[0]) * columns, columns - 1).astype(int)
    for c in range(columns):
        here = y[(column == c) & np.isfinite(y)]
        assert drawn.y[place == c].max() == here.max() and drawn.y[place == c].min() == here.min()


def test_a_stretch_without_any_value_is_a_gap_and_a_single_one_is_none():
    y = np.ones(10_000)
    y[3000:4000], y[7] = NAN, NAN
    drawn = condense(np.arange(10_000.0), y, 100)
    gaps = drawn.x[np.isnan(drawn.y)]
    assert len(gaps) == 10 and gaps.min() >= 3000 and gaps.max() < 4000
    assert drawn.middle is not None and np.isnan(drawn.middle[1]).sum() == 10


def test_nothing_but_gaps():
    drawn = condense(np.arange(9000.0), np.full(9000, NAN), 10)
    assert np.isnan(drawn.y).all()


def test_means_over_stretches():
    values = np.array([[1.0, 3.0, NAN, NAN], [2.0, NAN, 4.0, NAN]])
    middles, means = bin_means(np.arange(4.0), values, 2)
    assert middles.tolist() == [0.75, 2.25]
    assert means.tolist() == [[2.0, 0.0], [2.0, 4.0]]


def test_marks_in_one_place_are_drawn_once():
    assert len(spread(np.arange(100_000.0), 0, 99_999, 200)) == 201
    assert spread(np.array([5.0]), 5, 5, 200).tolist() == [0.0]


@pytest.mark.parametrize(
    ("values", "log"),
    [([1, 2], False), ([0.01, 44], True), ([0, 1e-3, 10], True), ([-1, 100], False), ([7], False)],
)
def test_the_axis_is_logarithmic_where_that_shows_more(values, log):
    axis = value_axis([np.array(values, dtype=np.float64)])
    assert axis is not None and axis.log is log
    places = axis.place(np.array(values, dtype=np.float64))
    assert np.all((places >= 0) & (places <= 1))


def test_no_axis_without_a_value():
    assert value_axis([np.array([NAN, np.inf])]) is None
    assert value_axis([]) is None


@pytest.mark.parametrize("low", [1e-30, 1e-6, 0.3, 1.0, 5e4])
@pytest.mark.parametrize("factor", [1.0, 1.2, 40.0, 1e6, 1e40])
@pytest.mark.parametrize("log", [True, False])
def test_ticks_are_few_in_order_and_inside(low, factor, log):
    axis = value_axis([np.array([low, low * factor])], log=log)
    assert axis is not None
    places = [place for place, _ in axis.ticks()]
    assert 1 <= len(places) <= 9
    assert places == sorted(set(places)) and places[0] >= 0 and places[-1] <= 1
    labels = [label for _, label in axis.ticks()]
    assert len(set(labels)) == len(labels)


def test_units():
    assert unit_for("bytes", 3 * 2**31).suffix == "GiB"
    assert unit_for("seconds", 0.004).suffix == "ms"
    assert unit_for("seconds", 1e-9).suffix == "µs"
    assert unit_for("", 5).suffix == ""
    axis = value_axis([np.array([0.004])], kind="seconds", log=False, zero=True)
    assert axis is not None and axis.ticks()[0] == (0.0, "0\N{NO-BREAK SPACE}ms")


@pytest.mark.parametrize(
    ("first", "last", "labels"),
    [
        (0, 10, ["0", "2", "4", "6", "8", "10"]),
        (3, 3, ["3"]),
        (0, 1_000_000, ["0", "200k", "400k", "600k", "800k", "1000k"]),
        (100, 102, ["100", "101", "102"]),
    ],
)
def test_steps_are_whole(first, last, labels):
    assert [label for _, label in step_ticks(step_axis(first, last))] == labels


def test_a_chart_breaks_its_line_at_a_gap_and_shows_a_lonely_point():
    x, y = np.arange(6.0), np.array([1, 2, NAN, 3, NAN, 1])
    curve = ChartLine(name="loss", style="s0", x=x, y=y)
    axis = Axis(low=0, high=4)
    marks = [StepMarks(name="left out", shape="skip", x=np.array([2.0]))]
    chart = Chart(key="k", title="Loss <b>", caption="words", x=step_axis(0, 5), y=axis,
                  curves=[curve], marks=marks)  # fmt: skip
    drawn = chart.draw()
    assert 'd="M0 150L200 100M600 50L600 50M1000 150L1000 150"' in drawn
    assert '<use href="#mark-skip" x="40%" y="0">' in drawn
    assert "Loss &lt;b&gt;" in drawn and drawn.count("<circle") == 4


def test_prefixes():
    assert common_prefix(["a.b.c", "a.b.d"]) == "a.b."
    assert common_prefix(["a.b", "a.b.c"]) == "a."
    assert common_prefix(["a.b"]) == common_prefix([]) == common_prefix(["x", "y"]) == ""
