"""``Engine`` is the only door into the guard: nobody outside goes to what lies behind it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from .sources import nodes

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "holdfast"


def reaches(source: str) -> list[str]:
    """Expressions ``engine.x.y``, wherever the engine comes from, as ``line: code``."""
    return [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in nodes(source)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and _is_engine(node.value.value)
    ]


def _is_engine(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name.strip("_") == "engine"


def test_nobody_reaches_through_the_engine():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(SRC.rglob("*.py"))
        if SRC / "guard" not in path.parents
        for line in reaches(path.read_text())
    ]
    assert not found, "ask the engine itself:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source", ["engine.journal.tell", "self.engine.phases.guard += 1", "self._engine.roster.all()"]
)
def test_a_reach_is_seen(source: str):
    assert reaches(source)


@pytest.mark.parametrize("source", ["engine.note(kind)", "self.engine.run", "other.engine"])
def test_the_door_itself_is_open(source: str):
    assert not reaches(source)
