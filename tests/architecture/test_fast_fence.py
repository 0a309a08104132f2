"""``guard/fast`` stands behind one door: the plain path can be read and run without it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from .test_imports import imports, modules

FAST = "holdfast.guard.fast"
DOOR = f"{FAST}.door"
# Outside of the guard: the patches that call torch's kernels without torch's walk to them.
PATCHES = {
    "holdfast.boot.patches": {f"{FAST}.direct_calls"},
    "holdfast.boot._scaler_patches": {f"{FAST}.direct_calls"},
    "holdfast.boot._optimizer_patches": {f"{FAST}.prepared_update"},
}
# Who asks the door, and what: everything else of it belongs to the fence.
PARTS = {"bursts", "short", "plain", "host", "device", "now"}


def beyond_the_door(source: str, module: str, is_package: bool = False) -> list[str]:
    """Imports of ``guard/fast`` that are not of its door, in a file that stands outside of it."""
    if module == FAST or module.startswith(f"{FAST}."):
        return []
    allowed = PATCHES.get(module, {DOOR} if module.startswith("holdfast.guard.") else set())
    return [
        f"{module}:{item.line}: {item.module}"
        for item in imports(source, module, is_package)
        if (item.module == FAST or item.module.startswith(f"{FAST}."))
        and item.module not in allowed
    ]


def behind_the_door(source: str) -> Iterator[str]:
    """Expressions ``fast.bursts`` and their like, as ``line: code``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in PARTS:
            name = getattr(node.value, "attr", getattr(node.value, "id", ""))
            if name.strip("_") == "fast":
                yield f"{node.lineno}: {ast.unparse(node)}"


def outside() -> dict[str, Path]:
    return {name: path for name, path in modules().items() if not name.startswith(FAST)}


def test_the_plain_path_imports_nothing_of_the_fast_one_but_its_door() -> None:
    found = [
        line
        for module, path in outside().items()
        for line in beyond_the_door(path.read_text(), module, path.name == "__init__.py")
    ]
    assert not found, "\n".join(found)


def test_nobody_reaches_through_the_door() -> None:
    found = [
        f"{module}:{line}"
        for module, path in outside().items()
        for line in behind_the_door(path.read_text())
    ]
    assert not found, "ask the door itself:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("holdfast.guard.hooks.clip", "from ..fast.burst import Burst"),
        ("holdfast.guard.engine_state", "from .fast import bursts"),
        ("holdfast.guard.optimizer_guard", "def f():\n    from .fast.plans import StepPlan"),
        ("holdfast.boot.patches", "from ..guard.fast.door import FastSteps"),
        ("holdfast.watching.watch", "import holdfast.guard.fast.door"),
    ],
)
def test_a_way_around_the_door_is_seen(module: str, source: str) -> None:
    assert beyond_the_door(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("holdfast.guard.engine_state", "from .fast.door import FastSteps, Parts"),
        ("holdfast.guard.fast.door", "from .bursts import Bursts"),
        ("holdfast.boot.patches", "from ..guard.fast import direct_calls"),
    ],
)
def test_the_door_itself_may_be_used(module: str, source: str) -> None:
    assert not beyond_the_door(source, module)


def test_a_reach_through_the_door_is_seen() -> None:
    assert list(behind_the_door("self._fast.bursts.now")) and list(behind_the_door("fast.host"))
    assert not list(behind_the_door("self._fast.open(optimizer)\nself.bursts.now"))
