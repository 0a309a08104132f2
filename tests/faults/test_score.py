from __future__ import annotations

import pytest

from holdfast.faults._catalogue import catalogue
from holdfast.faults._score import grade, grades_of, scores_of
from holdfast.faults._table import COLUMNS, cells_of, markdown_of, plain_of, text_of


@pytest.fixture
def cases(collection):
    return {case.path.stem: case for case in catalogue(collection / "nothing", [collection])}


@pytest.mark.parametrize(
    ("said", "detected", "first", "exact", "near"),
    [
        ([], False, False, False, False),
        ([("MEM002", "leaky.py", 3)], True, True, True, True),
        ([("MEM002", "leaky.py", 7)], True, True, True, True),
        ([("MEM002", "meters.py", 9)], True, True, True, True),
        ([("MEM002", "leaky.py", 5)], True, True, False, True),
        ([("MEM002", "leaky.py", 10)], True, True, False, False),
        ([("MEM002", "quiet.py", 3)], True, True, False, False),
        ([("TPT004", "leaky.py", 3), ("MEM002", "leaky.py", 3)], True, False, True, True),
        ([("TPT004", "leaky.py", 3)], False, False, False, False),
    ],
)
def test_what_counts(cases, make_trial, said, detected, first, exact, near):
    result = grade(cases["leaky"], make_trial("other/leaky", *said))
    assert (result.detected, result.first) == (detected, first)
    assert (result.exact, result.near) == (exact, near)


def test_steps_count_from_the_fault_to_the_knowledge(cases, make_trial):
    trial = make_trial("other/leaky", ("MEM002", "leaky.py", 3), known={"MEM002": 16})
    assert grade(cases["leaky"], trial).steps == 12
    assert grade(cases["leaky"], make_trial("x", ("MEM002", "leaky.py", 3))).steps == 6


def test_a_code_that_is_as_right_counts_and_a_line_nobody_gave_does_not(cases, make_trial):
    result = grade(cases["spiky"], make_trial("other/spiky", ("OPT001", "", 0)))
    assert result.first and result.good and result.exact is None
    assert cells_of(result)["line"] == "-"


def test_silence_on_healthy_scripts(cases, make_trial):
    quiet = cases["quiet"]
    assert grade(quiet, make_trial("other/quiet")).good
    assert grade(quiet, make_trial("other/quiet", ("MEM001", "", 0, "info"))).good
    assert grade(quiet, make_trial("other/quiet", ("MEM001", "", 0))).alarms == ("MEM001",)
    assert not grade(quiet, make_trial("other/quiet", exit_code=1, outcome="failed")).good


def test_scores_and_goals(cases, make_trial):
    trials = {
        "other/leaky": make_trial("other/leaky", ("MEM002", "leaky.py", 4), guard_cost=0.01),
        "other/spiky": make_trial("other/spiky", ("OPT002", "", 0), exit_code=3, outcome="stopped"),
        "other/quiet": make_trial("other/quiet"),
    }
    grades = grades_of(list(cases.values()), trials)
    (score,) = scores_of(grades)
    assert score.shares == {
        "detected": (2, 2),
        "code right": (2, 2),
        "line exact": (0, 1),
        "line ±2": (1, 1),
    }
    assert (score.alive, score.alarmed, score.broken, score.cost) == (1, 0, 0, 0.01)
    assert score.missed == ["line exact 0 of 1, wanted 75%"]
    trials["other/quiet"] = make_trial("other/quiet", ("TPT001", "", 0))
    (score,) = scores_of(grades_of(list(cases.values()), trials))
    assert "findings above info on 1 of 1 healthy scripts" in score.missed


def test_every_form_of_the_table_has_every_row(cases, make_trial):
    trials = {case.name: make_trial(case.name) for case in cases.values()}
    grades = grades_of(list(cases.values()), trials)
    scores = scores_of(grades)
    text, page, plain = text_of(grades), markdown_of(grades, scores), plain_of(grades, scores)
    assert len(text) == 4 and text[0].split() == list(COLUMNS)
    assert "MISSED (unseen): detected 0 of 2" in page
    assert [case["name"] for case in plain["cases"]] == list(trials)
    for name in trials:
        assert name in page
