"""A small collection of made-up scripts, and trials of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from detecting.trial import Found, Trial

ANSWERS = [
    {"script": "leaky.py", "category": "graph_leak", "line": 3, "also": [7], "first_step": 4,
     "why": "a sum of losses", "also_other_file": [["meters.py", 9]]},
    {"script": "spiky.py", "code": "OPT002", "also_codes": ["OPT001"], "line": None},
    {"script": "quiet.py", "why": "nothing is wrong"},
]  # fmt: skip


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """A folder as somebody else might hand it in."""
    folder = tmp_path / "corpus" / "2026-01-31-other"
    folder.mkdir(parents=True)
    for answer in ANSWERS:
        (folder / answer["script"]).write_text("print('hello')\n")
    (folder / "meters.py").touch()
    (folder / "answers.json").write_text(json.dumps(ANSWERS))
    return folder


@pytest.fixture
def make_trial() -> Callable[..., Trial]:
    """``make_trial("other/leaky", ("MEM002", "leaky.py", 3))``; a severity may follow the line."""

    def make(name: str, *found: tuple[Any, ...], **more: Any) -> Trial:
        findings = tuple(
            Found(code=code, file=file, line=line, step=10, severity=(*rest, "warning")[0])
            for code, file, line, *rest in found
        )
        given = {"exit_code": 0, "outcome": "finished", "seconds": 1.0, "findings": findings}
        return Trial(name=name, **{**given, **more})

    return make
