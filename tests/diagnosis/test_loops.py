"""What the source says: loops and statements."""

from __future__ import annotations

import pytest

from holdfast.diagnosis.source.loops import loop_around, loop_of, statement

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


@pytest.mark.parametrize(
    ("line", "loop"), [(4, (3, 6)), (6, (3, 6)), (7, (2, 7)), (2, (0, 0)), (10, (0, 0))]
)
def test_the_innermost_loop(source, line, loop):
    assert loop_around(source, line) == loop


@pytest.mark.parametrize(("line", "loop"), [(2, (2, 7)), (3, (3, 6)), (4, (3, 6)), (1, (0, 0))])
def test_the_head_of_a_loop_belongs_to_it(source, line, loop):
    assert loop_of(source, line) == loop


def test_a_statement_over_two_lines_is_one(source):
    found = statement(source, 6)
    assert found.first == 5
    assert found.text == "history.append( batch)"
    assert statement(source, 10).calls == ("check",)


def test_no_source_is_no_failure(tmp_path):
    missing = str(tmp_path / "missing.py")
    assert loop_around(missing, 3) == (0, 0)
    assert statement(missing, 3).calls == ()
