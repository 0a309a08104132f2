"""How source is quoted in the sentences about a crash."""

from __future__ import annotations

from holdfast.detectors._crashes import RULES, Crash, explain
from holdfast.detectors._crashes.facts import CrashLine
from holdfast.detectors._crashes.pattern import Pattern
from holdfast.detectors.judge import Judge
from holdfast.records.crash import CodeLine, RaisedException
from holdfast.types import Event


def test_a_quoted_line_ends_without_its_colon():
    made = CodeLine(name="x", file="t.py", line=3, code="for x, y in dl:")
    assert CrashLine(about=made).reported() == " (t.py:3: for x, y in dl)"
    message = "mat1 and mat2 shapes cannot be multiplied (32x24 and 20x8)"
    cause = explain(RaisedException(type="RuntimeError", message=message, origins=(made,)))
    assert "::" not in cause.advice


def test_a_message_of_several_lines_ends_without_its_colon(make_rows):
    text = "Error(s) in loading state_dict for Net:\n\tMissing key(s)"
    raised = RaisedException(type="RuntimeError", message=text, file="t.py", line=3)
    rows, judge = make_rows(3), Judge()
    judge.feed(rows, [Event(time=2.0, rank=0, step=2, kind=raised.kind, data=raised.to_dict())])
    judge.close()
    assert "for Net at t.py:3" in judge.findings[0].message


def test_a_pattern_needs_all_that_it_names():
    rule = Pattern(
        says=r"not (so|thus)", type="TypeError", phase="loading", library="optim/", headline="h",
        advice="a",
    )  # fmt: skip
    raised = RaisedException(
        type="TypeError", message="it is not so", phase="loading", library="torch\\optim\\adam.py:3"
    )
    found = rule(Crash(data=raised))
    assert found is not None and (found.headline, found.advice, found.row) == ("h", "a", -1)
    for other in ({"type": "KeyError"}, {"message": "so"}, {"phase": None}, {"library": None}):
        assert rule(Crash(data=raised.replace(**other))) is None, other


def test_no_pattern_stands_behind_one_that_takes_its_message():
    """The first that fits has it: a pattern with the words of an earlier one would never speak."""
    patterns = [rule for rule in RULES if isinstance(rule, Pattern)]
    assert len(patterns) > 40
    for place, rule in enumerate(patterns):
        earlier = [one for one in patterns[:place] if one.says and one.says in rule.says]
        assert earlier == [], rule.headline
        assert rule.says or rule.type, rule.headline
