"""The statement at a line, and what is around it."""

from __future__ import annotations

import pytest

from holdfast.source.loops import loop_around
from holdfast.source.statements import text_at

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
    assert loop_around(missing, 3) == (0, 0)
    assert text_at(missing, 3).calls == ()
