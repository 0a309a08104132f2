"""The loops and blocks around a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.source.loops import (
    LoopAround,
    asks_alone,
    blocks_around,
    in_comprehension,
    in_handler,
    loop_around,
    loop_at,
    loop_of,
)

from .conftest import place

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


def loop_in(tmp_path: Path, text: str, head: str) -> LoopAround:
    return loop_at(*place(tmp_path, text, head))


def test_the_loops_around_are_named_without_the_one_that_reads(tmp_path: Path):
    text = """
    def train(loader):
        for fold in range(3):
            for epoch in range(5):
                for i, x in enumerate(loader):
                    f(x)
    """
    found = loop_in(tmp_path, text, "enumerate(loader)")
    assert [name for name, _ in found.around] == ["fold", "epoch"]
    assert (found.first, found.last) == (5, 6)


def test_a_loop_whose_body_asks_is_around(tmp_path: Path):
    text = """
    def train(batches):
        for step in range(9):
            x = next(batches)
    """
    found = loop_in(tmp_path, text, "next(batches)")
    assert [name for name, _ in found.around] == ["step"]


def test_blocks_around_a_line_end_with_the_function(tmp_path: Path):
    text = """
    for fold in range(3):
        def train(batches):
            with autocast(), lock:
                for step in batches:
                    f(step)
            g(step)
    """
    path, _, line = place(tmp_path, text, "f(step)")
    assert [type(one).__name__ for one in blocks_around(path, 3, line, 0)] == ["With", "For"]
    assert blocks_around(path, 3, line + 1, 0) == ()
    assert [one.lineno for one in blocks_around(path, 3, 5, 5)] == [4, 5], "its head counts"
    assert [one.lineno for one in blocks_around(path, 3, 5, 0)] == [4]
    assert [one.lineno for one in blocks_around(path, 0, line, 0)] == [2]


@pytest.mark.parametrize(
    ("code", "alone"),
    [
        ("x = next(it)", True),
        ("x, y = next(self.it)[0].to(device)", True),
        ("x = f(next(it))", False),
        ("x += next(it)", False),
        ("x = next(iter(it))", False),
    ],
)
def test_what_is_read_before_a_batch_is_asked_for(tmp_path: Path, code: str, alone: bool):
    assert asks_alone(*place(tmp_path, code, code)) is alone


def test_handlers_and_comprehensions(tmp_path: Path):
    text = """
    try:
        a = [f(x) for x in xs]
    except ValueError:
        b = 1
    finally:
        c = 1
    """
    path, _, line = place(tmp_path, text, "a = ")
    assert in_comprehension(path, 0, line) and not in_comprehension(path, 0, line + 2)
    assert [in_handler(path, 0, line + more) for more in (0, 2, 4)] == [False, True, True]
