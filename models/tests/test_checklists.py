"""Checklists of the families name tests that are there, their maps every file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import holdfast_models

HERE = Path(__file__).parent
PACKAGE = Path(holdfast_models.__file__).parent
TESTS = HERE.parents[1] / "tests"  # of holdfast itself, named with their folder
FAMILIES = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
FEWEST = 80
"""Proofs that a checklist names at least, or they were not read."""


@pytest.mark.parametrize("family", FAMILIES)
def test_every_proof_of_the_checklist_is_a_test(family: str) -> None:
    checklist = HERE.parent / "docs" / f"{family}_checklist.md"
    named = re.findall(r"`([\w/]+)::(\w+)`", checklist.read_text())
    assert len(named) > FEWEST
    places = {path.stem: path for path in (HERE / family).rglob("test_*.py")}
    places |= {f"{path.parent.name}/{path.stem}": path for path in TESTS.rglob("test_*.py")}
    missing: list[str] = []
    for file, name in named:
        text = places[file].read_text() if file in places else ""
        if not re.search(rf"^def {name}\(", text, re.M):
            missing.append(f"{file}::{name}")
    assert not missing


@pytest.mark.parametrize("family", FAMILIES)
def test_the_map_names_every_file_and_no_other(family: str) -> None:
    room = PACKAGE / family
    text = re.sub(r"`\.\./\w+\.py`", "", (room / "README.md").read_text())  # of all families
    named = set(re.findall(r"[`/](\w+\.py)`", text))
    found = {path.name for path in room.rglob("*.py") if path.parent.name != "detectors"}
    assert found - {"__init__.py"} == named
