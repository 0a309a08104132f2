from __future__ import annotations

import math

import pytest

from holdfast.report.health import HealthRows, label
from holdfast.report.live import CLEAR, Live
from holdfast.report.terminal import Terminal

SCREEN = Terminal(there=True, width=100)


def lines(rows, every=50, lane="r0"):
    return list(HealthRows(every).lines(lane, rows))


def test_a_line_with_everything_a_user_asks_for(make_rows):
    rows = make_rows(101, loss=2.5, loss_baseline=2.4, grad_norm=1.25,
                     norm_baseline=1.5, norm_limit=15.0,
                     skipped={7: 1, 60: 1})  # fmt: skip
    assert lines(rows) == [
        "step 50  loss 2.5 (baseline 2.4)  grad norm 1.25 healthy (baseline 1.5)  lr 0.001  "
        "100 steps/s  1 skipped",
        "step 100  loss 2.5 (baseline 2.4)  grad norm 1.25 healthy (baseline 1.5)  lr 0.001  "
        "100 steps/s  2 skipped",
    ]


def test_what_is_not_known_is_left_out(make_rows):
    rows = make_rows(11, loss=math.nan, lr=math.nan)[["step", "time", "loss", "lr"]]
    expected = "step 10  loss not recorded  grad norm not recorded  100 steps/s"
    assert lines(rows, 10) == [expected]
    bad = make_rows(11, loss={10: math.nan}, loss_bad={10: 1}, grad_norm={10: math.nan}, grad_bad=1)
    assert "loss NaN (baseline 1)  grad norm NaN non-finite" in lines(bad, 10)[0]


@pytest.mark.parametrize(
    ("norm", "word"),
    [(0.49, "low"), (0.5, "healthy"), (5.0, "healthy"), (5.1, "high"), (10.0, "high"),
     (10.1, "critical"), (math.nan, "non-finite"), (math.inf, "non-finite")],
)  # fmt: skip
def test_bands_are_the_labels_until_the_scale_of_the_run_is_known(norm, word):
    assert label(norm, usual=math.nan, limit=math.nan) == word


@pytest.mark.parametrize(
    ("norm", "word"),
    [(400.0, "healthy"), (39.0, "low"), (900.0, "high"), (1001.0, "critical"),
     (math.inf, "non-finite")],
)  # fmt: skip
def test_afterwards_the_run_is_its_own_measure(norm, word):
    assert label(norm, usual=400.0, limit=1000.0) == word


def test_a_step_that_was_lost_does_not_silence_the_line(make_rows):
    rows = make_rows(200)
    assert [line.split()[1] for line in lines(rows[rows["step"] % 50 != 0])] == ["51", "101", "151"]


def test_a_step_that_was_left_out_is_passed_over_but_a_storm_is_reported(make_rows):
    bad = dict.fromkeys(range(50, 53), 1) | dict.fromkeys(range(100, 200), 1)
    reported = lines(make_rows(200, skipped=bad))
    assert [line.split()[1] for line in reported] == ["53", "125", "175"]


def test_rows_in_any_portions_give_the_same_lines(make_rows):
    rows, health = make_rows(301), HealthRows(50)
    pieces = [line for i in range(0, 301, 7) for line in health.lines("r0", rows[i : i + 7])]
    assert pieces == lines(rows) and len(pieces) == 6
    assert not list(health.lines("r0", None)) and not list(health.lines("r0", rows[:0]))


def test_every_optimizer_has_its_line(make_rows):
    rows = make_rows(40, opt=[0, 1] * 20)
    rows["step"] //= 2
    reported = lines(rows, 10)
    assert [("optimizer 1" in line) for line in reported] == [False, True]


def test_none_unless_asked_for_and_none_when_quiet_or_of_other_ranks(make_rows):
    said: list[str] = []
    rows = make_rows(101)
    Live(said.append, terminal=SCREEN).show_health("r0", 0, rows)
    Live(said.append, terminal=SCREEN, health=50, quiet=True).show_health("r0", 0, rows)
    Live(said.append, terminal=SCREEN, health=50).show_health("r1", 1, rows)
    assert not said
    Live(said.append, terminal=SCREEN, health=50).show_health("r0", 0, rows)
    assert len(said) == 2 and all(line.startswith(CLEAR) for line in said)
