"""The checklist names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
CHECKLIST = TESTS.parent / "docs" / "energy_flow_checklist.md"
HERE = "models/energy_flow"


def test_every_proof_of_the_checklist_is_a_test() -> None:
    named = re.findall(r"`([\w/]+)::(\w+)`", CHECKLIST.read_text())
    assert len(named) > 80
    missing = []
    for file, name in named:
        path = TESTS / (f"{file}.py" if "/" in file else f"{HERE}/{file}.py")
        if not path.is_file() or not re.search(rf"^def {name}\(", path.read_text(), re.M):
            missing.append(f"{file}::{name}")
    assert not missing
