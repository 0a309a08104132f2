"""The checklist has every row and names tests that are there, the map every file."""

from __future__ import annotations

import re
from pathlib import Path

import holdfast_models.liquid

HERE = Path(__file__).parent
CHECKLIST = HERE.parents[1] / "docs" / "liquid_checklist.md"
TESTS = HERE.parents[2] / "tests"  # of holdfast itself, named with their folder
FAMILY = Path(holdfast_models.liquid.__file__).parent
ROWS = {"Stability": 8, "Phases": 5, "Speed": 2, "Behaviour": 6}
FAULTS = 15


def rows_of(section: str) -> list[list[str]]:
    """Cells of the table behind a heading, without titles and rule."""
    text = CHECKLIST.read_text().split(f"{section}", 1)[1].split("\n#", 1)[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [re.split(r" (?<!\\)\| ", line[2:-2]) for line in lines[1:]]


def test_every_row_of_the_acceptance_checklist_is_there_with_its_state_and_proof() -> None:
    for group, count in ROWS.items():
        rows = rows_of(f"### {group}")
        assert len(rows) == count, group
        for demand, state, proof in rows:
            assert re.match(r"\*(holds|in part|not yet)\*", state), demand
            assert "::" in proof or "not yet" in state, demand


def test_every_fault_of_the_reference_is_there_with_its_test() -> None:
    rows = rows_of("## What the reference does wrong")
    assert [int(row[0]) for row in rows] == [*range(1, FAULTS + 1)]
    for _, fault, state, proof in rows:
        assert re.match(r"\*(holds|in part|not yet)\*", state), fault
        assert "::" in proof, fault


def test_every_proof_of_the_checklist_is_a_test() -> None:
    named = re.findall(r"`([\w/]+)::(\w+)`", CHECKLIST.read_text())
    assert len(named) > 60
    places = {path.stem: path for path in HERE.rglob("test_*.py")}
    places |= {f"{path.parent.name}/{path.stem}": path for path in TESTS.rglob("test_*.py")}
    missing: list[str] = []
    for file, name in named:
        text = places[file].read_text() if file in places else ""
        if not re.search(rf"^def {name}\(", text, re.M):
            missing.append(f"{file}::{name}")
    assert not missing


def test_the_map_names_every_file_and_no_other() -> None:
    named = set(re.findall(r"[`/](\w+\.py)`", (FAMILY / "README.md").read_text()))
    found = {path.name for path in FAMILY.rglob("*.py") if path.parent.name != "detectors"}
    assert found - {"__init__.py"} == named
