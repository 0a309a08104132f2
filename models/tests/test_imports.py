"""No two files of the families need each other, directly or round about."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import holdfast_models

SRC = Path(holdfast_models.__file__).parents[1]


def modules(src: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(src.rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(module: str, path: Path) -> Iterator[tuple[str, str]]:
    """Every import wherever it stands: a module, and what is taken from it, if anything."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*start, *([node.module] if node.module else [])])
            yield from ((source, alias.name) for alias in node.names)


def graph(src: Path) -> dict[str, set[str]]:
    """Which file imports which, for types alone or inside a function too."""
    known = modules(src)
    found: dict[str, set[str]] = {}
    for module, path in known.items():
        pairs = [(source, f"{source}.{name}") for source, name in imported(module, path)]
        targets = {inner if inner in known else source for source, inner in pairs}
        found[module] = (targets & set(known)) - {module}
    return found


def test_no_file_imports_in_a_circle():
    found = graph(SRC)
    assert sum(map(len, found.values())) > len(found) > 100  # imports were read
    tuple(TopologicalSorter(found).static_order())  # raises CycleError


@pytest.mark.parametrize(
    "back",
    [
        "from .a import A",
        "from . import a",
        "import pack.a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import A",
        "def late():\n    from pack.a import A",
    ],
)
def test_a_circle_is_seen(tmp_path: Path, back: str):
    (tmp_path / "pack" / "room").mkdir(parents=True)
    (tmp_path / "pack" / "__init__.py").touch()
    (tmp_path / "pack" / "a.py").write_text("from .room import B\n")
    (tmp_path / "pack" / "room" / "__init__.py").write_text("from ..b import B\n")
    (tmp_path / "pack" / "b.py").write_text("import torch\n")
    tuple(TopologicalSorter(graph(tmp_path)).static_order())
    (tmp_path / "pack" / "b.py").write_text(back)
    with pytest.raises(CycleError):
        tuple(TopologicalSorter(graph(tmp_path)).static_order())
