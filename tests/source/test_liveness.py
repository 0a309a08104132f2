"""Which variables of a loop can be read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.source.liveness import changed_names, dead_at

from .conftest import place


def dead_in(tmp_path: Path, text: str, head: str = "in loader") -> frozenset[str]:
    return dead_at(*place(tmp_path, text, head))


@pytest.mark.parametrize(
    ("body", "after", "dead"),
    [
        ("out = model(x)", "", {"x", "out"}),
        ("out = model(x)", "print(out)", {"x"}),
        ("total += x", "", {"x"}),
        ("hidden = model(x, hidden)", "", {"x"}),
        (
            "with autocast():\n            out = model(x)\n        loss = f(out)",
            "",
            {"x", "out", "loss"},
        ),
        ("if x > 0:\n            kept = x", "", {"x", "kept"}),
        ("if x > 0:\n            kept = x\n        f(kept)", "", {"x"}),
        ("if x > 0:\n            kept = x", "print(kept)", {"x"}),
        (
            "if x > 0:\n            a = 1\n        else:\n            a = 2\n        f(a)",
            "",
            {"x", "a"},
        ),
        ("for part in x:\n            f(part)", "", {"x", "part"}),
        ("for part in x:\n            f(part)\n        f(part)", "", {"x"}),
        ("out = model(x)\n        save = lambda: out", "", {"x", "save"}),
    ],
)
def test_what_nobody_reads_again_is_dead(tmp_path: Path, body: str, after: str, dead: set[str]):
    text = f"""
def train(loader, total=0, hidden=None):
    for x in loader:
        {body}
    {after}
"""
    found = dead_in(tmp_path, text)
    assert found == dead


def test_a_name_of_another_loop_does_not_count(tmp_path: Path):
    text = """
    def train(loader, other):
        for x in loader:
            f(x)
        for x in other:
            f(x)
    """
    assert "x" in dead_in(tmp_path, text)


def test_a_global_that_a_function_reads_is_read_again(tmp_path: Path):
    text = "for x in loader:\n    loss = f(x)\n{}"
    assert dead_in(tmp_path, text.format("")) == {"x", "loss"}
    assert dead_in(tmp_path, text.format("def show():\n    print(loss)")) == {"x"}


def test_variables_of_the_callers_are_dead_where_they_are_set_before_they_are_read(tmp_path: Path):
    text = """
    def train(loader, model, average):
        for epoch in range(3):
            for i, x in enumerate(loader):
                loss = model(x)
                if i % 2:
                    for a, b in zip(average, model):
                        a.lerp_(b, 0.1)
            score = evaluate(model)
            print(epoch, score, loss)
    """
    found = dead_in(tmp_path, text, "score = evaluate")
    assert found == {"i", "x", "a", "b"}  # score is read below the line: that costs little


def test_what_reads_every_variable_keeps_them_all(tmp_path: Path):
    assert not dead_in(tmp_path, "for x in loader:\n    f(x)\nprint(locals())")


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ("print(vars(args))", False),
        ("print(sorted(vars(args.model).items()), dir(args))", False),
        ("print(vars())", True),
        ("import __main__\nprint(vars(__main__))", True),
        ("show = vars", True),
        ("print(vars(find()))", True),
    ],
)
def test_the_variables_of_an_object_are_not_those_of_the_scope(
    tmp_path: Path, asked: str, kept: bool
):
    found = dead_in(tmp_path, f"for x in loader:\n    f(x)\n{asked}")
    assert found == (set() if kept else {"x"})


def test_of_an_expression_too_deep_to_follow_everything_is_kept(tmp_path):
    path = tmp_path / "deep.py"
    path.write_text("x = 1\nfor i in range(3):\n    y = " + " + ".join(["x"] * 900) + "\n")
    assert dead_at(str(path), 0, 2) == frozenset()


def test_names_that_are_changed_somewhere(tmp_path: Path):
    path = tmp_path / "script.py"
    path.write_text(
        "self.seen.append(1)\nrows[3] = 2\nn += 1\nrandom.shuffle(order)\nprint(kept)\n"
    )
    names = changed_names(str(path))
    assert {"seen", "rows", "n", "order"} <= names and "kept" not in names
