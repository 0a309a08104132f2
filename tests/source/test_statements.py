"""The statement at a line, and what is around it."""

from __future__ import annotations

import ast

import pytest

from holdfast.source.statements import (
    expression_at,
    function_at,
    function_head,
    own_statements,
    scope_at,
    statement_at,
    text_at,
)

SOURCE = """\
def train(loader):
    for epoch in range(3):
        for batch in loader:
            step(batch)
            history.append(
                batch)
        save()


if check(x):
    pass
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    return str(path)


def test_a_statement_over_two_lines_is_one(source):
    found = text_at(source, 6)
    assert found.first == 5
    assert found.text == "history.append( batch)"
    assert text_at(source, 10).calls == ("check",)


def test_no_source_is_no_failure(tmp_path):
    missing = str(tmp_path / "missing.py")
    assert statement_at(missing, 3) is None
    assert text_at(missing, 3).calls == ()
    assert function_at(missing, 3) == "" and function_head(missing, 3) == ()


def test_what_is_around_a_statement(source):
    found = statement_at(source, 5)
    assert found is not None and found.names == ("train",)
    assert [loop.lineno for loop in found.loops] == [2, 3]
    head = statement_at(source, 3)
    assert head is not None and [loop.lineno for loop in head.loops] == [2], "its own is none"
    assert function_at(source, 7) == "train" and function_at(source, 10) == ""
    assert function_head(source, 7) == (1, "def train(loader):")


def test_a_function_within_a_loop_begins_anew(tmp_path):
    path = tmp_path / "nested.py"
    path.write_text(
        "for x in y:\n    @wraps\n    def f():\n        g()\n    class C:\n        a = 1\n"
    )
    inner, own = statement_at(str(path), 4), statement_at(str(path), 6)
    assert inner is not None and inner.loops == () and inner.names == ("f",)
    assert own is not None and len(own.loops) == 1
    scope = scope_at(str(path), 2)
    assert isinstance(scope, ast.FunctionDef) and scope.name == "f", "with its decorators"
    assert scope_at(str(path), 3) is None and isinstance(scope_at(str(path), 0), ast.Module)
    assert sorted(one.lineno for one in own_statements(scope_at(str(path), 0))) == [1, 3, 5]
    assert list(own_statements(None)) == []


def test_an_expression_is_found_by_its_position(source):
    found = expression_at(source, (5, 6, 12, 22))
    assert isinstance(found, ast.Call) and ast.unparse(found) == "history.append(batch)"
    assert expression_at(source, (5, 6, 12, 23)) is None
