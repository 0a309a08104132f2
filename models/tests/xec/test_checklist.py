"""The checklist names tests that are there, the map files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import holdfast_models.xec

HERE = Path(__file__).parent
CHECKLIST = HERE.parents[1] / "docs" / "xec_checklist.md"
TESTS = HERE.parents[2] / "tests"  # of holdfast itself, named with their folder


def test_every_proof_of_the_checklist_is_a_test() -> None:
    named = re.findall(r"`([\w/]+)::(\w+)`", CHECKLIST.read_text())
    assert len(named) > 80
    places = {path.stem: path for path in HERE.rglob("test_*.py")}
    places |= {f"{path.parent.name}/{path.stem}": path for path in TESTS.rglob("test_*.py")}
    missing: list[str] = []
    for file, name in named:
        text = places[file].read_text() if file in places else ""
        if not re.search(rf"^def {name}\(", text, re.M):
            missing.append(f"{file}::{name}")
    assert not missing


def test_the_map_names_every_file_and_no_other() -> None:
    family = Path(holdfast_models.xec.__file__).parent
    named = set(re.findall(r"[`/](\w+\.py)`", (family / "README.md").read_text()))
    found = {path.name for path in family.rglob("*.py") if path.parent.name != "detectors"}
    assert found - {"__init__.py"} == named
