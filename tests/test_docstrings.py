"""The examples in docstrings are promises: each runs, as written."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
# Scripts that answer to names python itself looks for; only a child process may import them.
NOT_IMPORTED = SRC / "holdfast" / "boot" / "site"


def modules_with_examples() -> list[str]:
    return [
        ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(SRC.rglob("*.py"))
        if ">>> " in path.read_text() and NOT_IMPORTED not in path.parents
    ]


def failures(module: object, name: str) -> str:
    """What the examples of a module print that they should not; empty if all hold."""
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in doctest.DocTestFinder().find(module, name):
        runner.run(test, out=report.append)
    return "".join(report)


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples(name):
    assert not failures(importlib.import_module(name), name)


def test_a_wrong_example_is_seen():
    class Wrong:
        """
        >>> 1 + 1
        3
        """

    assert "Expected" in failures(Wrong, "Wrong")
