from __future__ import annotations

import math

import numpy as np
import pytest

from holdfast.detectors import HISTORY, Window

NAN = np.nan


def test_the_newest_row_is_the_one_judged(make_rows):
    window = Window(rows=make_rows(4, start=10, opt=1), fresh=2)
    assert (window.step, window.opt, len(window)) == (13, 1, 4)
    assert window.new["step"].tolist() == [12, 13]


def test_last_looks_back_for_a_measured_value(make_rows):
    window = Window(rows=make_rows(200, param_bad=[*[NAN] * 5, 2, *[NAN] * 194]))
    reading = window.last("param_bad")
    assert reading is not None and (reading.row, reading.step, reading.value) == (5, 5, 2)
    assert window.last("param_bad", before=5) is None
    assert window.last("param_bad", opt=1) is None
    assert window.last("no_such_column") is None


def test_last_respects_the_optimizer(make_rows):
    window = Window(rows=make_rows(4, opt=[0, 1, 0, 1], loss=[1, 2, 3, 4]))
    reading = window.last("loss", opt=0)
    assert reading is not None and reading.value == 3


def test_missing_columns_read_as_not_measured(make_rows):
    window = Window(rows=make_rows(2)[["step", "time"]])
    assert math.isnan(window.value("loss"))
    assert window.opt == 0
    assert not window.says("loss_bad")


def test_ending_goes_back_in_time_and_is_never_longer_than_the_history(make_rows):
    window = Window(rows=make_rows(HISTORY + 10), fresh=10)
    ended = window.ending(HISTORY + 4)
    assert (ended.step, ended.fresh, len(ended)) == (HISTORY + 4, 1, HISTORY)
    assert len(window.ending(3)) == 4


@pytest.mark.parametrize(("index", "name"), [(0, "a"), (7, "layer number 7"), (-1, ""), (NAN, "")])
def test_names_of_layers(make_rows, index, name):
    window = Window(rows=make_rows(1, grad_layer=index), layers={0: ["a", "b"]})
    assert window.layer("grad_layer") == name
