"""One sentence about the time of a step: what bounds it, and whether it stays so."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.report.pace import STEPS, verdict

PHASES = {"forward": 0.004, "backward": 0.005, "optimizer": 0.001}


def timed(make_rows, each, stride=1):
    rows = make_rows(len(each))
    rows["step"] = stride * np.arange(len(each))
    rows["time"] = 1e9 + np.cumsum(each)
    return rows


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, "90 % of a step is spent in the model"),
        ({"data_wait": 0.03}, "75 % of a step waits for data"),
        ({"h2d": 0.01}, "copies to the device"),
        ({"other": 0.01}, "outside training"),
        ({"optimizer": 0.01}, "in the optimizer"),
        ({"data_wait": 0.001}, "in the model"),
    ],
)
def test_what_bounds_a_step(make_rows, more, says):
    reported = verdict(timed(make_rows, np.full(STEPS, 0.01)), {**PHASES, **more})
    assert says in reported.replace("\N{NO-BREAK SPACE}", " ")


def test_from_the_twentieth_step_on(make_rows):
    assert not verdict(timed(make_rows, np.full(STEPS - 1, 0.01)), PHASES)
    reported = verdict(timed(make_rows, np.full(STEPS, 0.01)), PHASES)
    assert reported.endswith("each so far, the guard included")
    assert not verdict(timed(make_rows, np.full(STEPS, 0.01)), {})


@pytest.mark.parametrize("stride", [1, 8])
def test_whether_it_stays_so(make_rows, stride):
    steady = verdict(timed(make_rows, np.full(60, 0.01), stride), PHASES)
    assert "as long as the first" in steady and "times" not in steady
    slower = verdict(timed(make_rows, np.linspace(0.01, 0.03, 60), stride), PHASES)
    assert "1.8 times as long" in slower
