"""Names that a statement reads and writes, and words for parts of a tree."""

from __future__ import annotations

import ast

import pytest

from holdfast.source.names import exposed, reads, surely_writes, writes
from holdfast.source.syntax import (
    dotted,
    first_name,
    flat,
    is_path,
    last_name,
    mentions,
    targets_of,
)


def statement(code: str) -> ast.stmt:
    return ast.parse(code).body[0]


def expression(code: str) -> ast.expr:
    return ast.parse(code, mode="eval").body


@pytest.mark.parametrize(
    ("code", "read", "written", "surely"),
    [
        ("x = y + self.h", {"y", "self", "self.h"}, {"x"}, {"x"}),
        ("x += y", {"x", "y"}, {"x"}, set()),
        ("rows[i] = y", {"rows", "i", "y"}, {"rows"}, set()),
        ("self.seen.append(y)", {"self", "self.seen", "y"}, {"self.seen"}, set()),
        ("x, (a.b, c) = y", {"a", "y"}, {"x", "a.b", "c"}, {"x", "a.b", "c"}),
        ("z = [q for q in x]", {"x"}, {"q", "z"}, {"q", "z"} - {"q"}),
    ],
)
def test_names_of_a_statement(code: str, read: set[str], written: set[str], surely: set[str]):
    node = statement(code)
    assert reads(node) == read and writes(node) == written and surely_writes(node) == surely


def test_what_both_branches_write_is_written_and_what_comes_first_is_exposed():
    node = statement("if ok:\n    a = 1\n    b = a\nelse:\n    a = c\n")
    assert surely_writes(node) == {"a"}
    assert exposed(node) == {"ok", "c"}
    assert exposed(statement("for x in data:\n    total = total + x\n")) == {"data", "total"}


def test_words_for_names():
    assert [last_name(expression(code)) for code in ("a", "a.b", "a[0]", "f(x)")] == [
        "a", "b", "", "",
    ]  # fmt: skip
    assert [first_name(expression(code)) for code in ("a", "a.b.c", "f(x).b")] == ["a", "a", ""]
    assert [is_path(expression(code)) for code in ("a.b", "a[0].b")] == [True, False]
    assert dotted(expression("torch.nn.functional.relu")) == "torch.nn.functional.relu"
    assert dotted(expression("f(x).mean")) == "?.mean"
    assert mentions(expression("f(self.h + 1)"), "h") and not mentions(expression("f(x)"), "")


@pytest.mark.parametrize(
    ("code", "targets"),
    [
        ("a = b.c = 1", ["a", "b.c"]),
        ("a, (b, *c) = d", ["a", "b", "c"]),
        ("a: int = 1", ["a"]),
        ("a[0] += 1", ["a[0]"]),
        ("for a, b in c:\n    pass", ["a", "b"]),
        ("with f() as a, g():\n    pass", ["a"]),
        ("f(a)", []),
    ],
)
def test_what_a_statement_gives_a_value_to(code: str, targets: list[str]):
    assert [ast.unparse(one) for one in flat(targets_of(statement(code)))] == targets
