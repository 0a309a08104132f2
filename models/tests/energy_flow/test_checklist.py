"""The checklist names tests that are there, the map files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import holdfast_models.energy_flow

HERE = Path(__file__).parent
CHECKLIST = HERE.parents[1] / "docs" / "energy_flow_checklist.md"
TESTS = HERE.parents[2] / "tests"  # of holdfast itself, named with their folder


def test_every_proof_of_the_checklist_is_a_test() -> None:
    named = re.findall(r"`([\w/]+)::(\w+)`", CHECKLIST.read_text())
    assert len(named) > 80
    places = {path.name: path for path in HERE.rglob("test_*.py")}
    missing = []
    for file, name in named:
        place = TESTS / f"{file}.py" if "/" in file else places[f"{file}.py"]
        if not place.is_file() or not re.search(rf"^def {name}\(", place.read_text(), re.M):
            missing.append(f"{file}::{name}")
    assert not missing


def test_the_map_names_every_file_and_no_other() -> None:
    family = Path(holdfast_models.energy_flow.__file__).parent
    text = (family / "README.md").read_text().replace("`../curves.py`", "")  # of all families
    named = set(re.findall(r"[`/](\w+\.py)`", text))
    found = {path.name for path in family.rglob("*.py") if path.parent.name != "detectors"}
    assert found - {"__init__.py"} == named - {"records.py"}
