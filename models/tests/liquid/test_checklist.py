"""The checklist has every row of the specification, with its state and its proof."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
CHECKLIST = HERE.parents[1] / "docs" / "liquid_checklist.md"
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
