from __future__ import annotations

import pytest
from detecting.corpus import read_collection
from detecting.score import grade, grades_of, score, scores_by_collection, scores_by_status
from detecting.table import (
    cells_of,
    changed_lines,
    collection_lines,
    goal_sentences,
    plain_of,
    script_lines,
)


@pytest.fixture
def cases(collection):
    return {case.path.stem: case for case in read_collection(collection)}


@pytest.mark.parametrize(
    ("findings", "detected", "first", "exact", "near"),
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
def test_what_counts(cases, make_trial, findings, detected, first, exact, near):
    result = grade(cases["leaky"], make_trial("other/leaky", *findings))
    assert (result.detected, result.first) == (detected, first)
    assert (result.exact, result.near) == (exact, near)


def test_steps_count_from_the_fault_to_the_step_it_was_known_at(cases, make_trial):
    trial = make_trial("other/leaky", ("MEM002", "leaky.py", 3), known={"MEM002": 16})
    assert grade(cases["leaky"], trial).steps == 12
    assert grade(cases["leaky"], make_trial("x", ("MEM002", "leaky.py", 3))).steps is None


def test_a_code_that_is_as_right_counts_and_a_line_nobody_gave_does_not(cases, make_trial):
    result = grade(cases["spiky"], make_trial("other/spiky", ("OPT001", "", 0)))
    assert result.first and result.exact is None
    assert cells_of(result)["line"] == "-"


def test_healthy_scripts_must_get_no_finding_above_info(cases, make_trial):
    quiet = cases["quiet"]
    assert grade(quiet, make_trial("other/quiet", ("MEM001", "", 0, "info"))).alarms == ()
    assert grade(quiet, make_trial("other/quiet", ("MEM001", "", 0))).alarms == ("MEM001",)
    assert not grade(quiet, make_trial("other/quiet", exit_code=1, outcome="failed")).alive


def test_scores_and_goals(cases, make_trial):
    trials = {
        cases["leaky"].name: make_trial("leaky", ("MEM002", "leaky.py", 4), guard_cost=0.01),
        cases["spiky"].name: make_trial("spiky", ("OPT002", "", 0), exit_code=3, outcome="stopped"),
        cases["quiet"].name: make_trial("quiet"),
    }
    result = score("all", grades_of(list(cases.values()), trials))
    assert result.shares == {
        "detected": (2, 2),
        "code first": (2, 2),
        "line exact": (0, 1),
        "line ±2": (1, 1),
    }
    assert (result.alive, result.accused, result.broken, result.cost) == (1, 0, 0, 0.01)
    assert result.missed == ["line exact 0 of 1, wanted 75%"]
    trials[cases["quiet"].name] = make_trial("quiet", ("TPT001", "", 0))
    result = score("all", grades_of(list(cases.values()), trials))
    assert "findings above info on 1 of 1 healthy scripts" in result.missed


def test_first_contacts_and_regressions_are_counted_apart(collection, cases, make_trial):
    second = collection.parent / "second"
    second.mkdir()
    (second / "leaky.py").touch()
    (second / "answers.json").write_text('[{"script": "leaky.py", "code": "MEM002"}]')
    (second / "README.md").write_text("- Status: regression\n")
    (old,) = read_collection(second)
    trials = {old.name: make_trial("old"), cases["quiet"].name: make_trial("quiet")}
    grades = grades_of([*cases.values(), old], trials)
    assert [s.name for s in scores_by_status(grades)] == ["first contact", "regression"]
    assert [s.name for s in scores_by_collection(grades)] == ["2026-01-31-other", "second"]
    assert goal_sentences(scores_by_status(grades)) == [
        "MISSED (regression): detected 0 of 1, wanted 95%",
        "MISSED (regression): code first 0 of 1, wanted 90%",
    ]
    assert "| second | regression | 1 | 0 | 0 | - | - | 0 | 0 |" in collection_lines(grades)


def test_every_form_of_the_table_has_every_row(cases, make_trial):
    trials = {case.name: make_trial(case.name) for case in cases.values()}
    grades = grades_of(list(cases.values()), trials)
    lines, plain = script_lines(grades), plain_of(grades)
    assert len(lines) == 5 and all(line.count("|") == lines[0].count("|") for line in lines)
    assert [case["name"] for case in plain["cases"]] == list(trials)
    assert all(any(name in line for line in lines) for name in trials)


def test_what_differs_from_the_recorded_findings_is_listed(cases, make_trial):
    name = cases["leaky"].name
    grades = grades_of([cases["leaky"]], {name: make_trial(name, ("MEM002", "leaky.py", 3))})
    assert changed_lines(grades, {name: grades[0].trial}) == []
    assert changed_lines(grades, {name: make_trial(name)}) == [
        f"{name}: nothing -> MEM002 warning leaky.py:3"
    ]
