"""The faults of this package with what is true about them, read without importing them."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One faulty training script, and what is true about it."""

    name: str
    path: Path
    code: str
    first_step: int
    """Optimizer step (from 0) from which on the fault is there."""
    lines: tuple[int, ...] = ()
    """Lines of the script that a finding may name; empty where no line is to blame."""
    why: str = ""
    options: tuple[str, ...] = ()
    """What ``holdfast run`` is given, where the defaults would take too long."""

    def plain(self) -> dict[str, Any]:
        """The fault as plain data, for JSON."""
        return {
            "name": self.name,
            "code": self.code,
            "first_step": self.first_step,
            "script": str(self.path),
            "lines": list(self.lines),
            "why": self.why,
        }


def read_faults(names: Iterable[str]) -> tuple[Fault, ...]:
    """The faults of these names, which are those of modules in this folder, by code."""
    found = (read_fault(HERE / f"{name}.py") for name in names)
    return tuple(sorted(found, key=lambda fault: fault.code))


def read_fault(path: Path) -> Fault:
    """Read the constants and the docstring of a script; importing it would import torch."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    constants = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in ("CODE", "FIRST_STEP", "LINE_OF", "OPTIONS")
    }
    return Fault(
        name=path.stem,
        path=path,
        code=constants["CODE"],
        first_step=constants["FIRST_STEP"],
        lines=_lines_of(text, constants.get("LINE_OF", "")),
        options=constants.get("OPTIONS", ()),
        why=(ast.get_docstring(tree) or "").partition("\n")[0],
    )


def choose(faults: Sequence[Fault], only: str = "") -> tuple[Fault, ...]:
    """The faults that ``only`` names: names, codes or their beginnings, with commas.

    >>> faults = read_faults(("stall", "nonfinite_loss", "loss_spike"))
    >>> [fault.name for fault in choose(faults, "NUM,stall")]
    ['nonfinite_loss', 'stall']
    """
    words = [word.strip() for word in only.split(",") if word.strip()]
    for word in words:
        if not any(_called(fault, word) for fault in faults):
            raise UsageError(f"no fault is called {word!r}; {_nearest(faults, word)}")
    return tuple(f for f in faults if not words or any(_called(f, word) for word in words))


def find(faults: Sequence[Fault], name: str) -> Fault:
    """The fault of this name."""
    for fault in faults:
        if fault.name == name:
            return fault
    raise UsageError(f"no fault is called {name!r}; {_nearest(faults, name)}")


def _called(fault: Fault, word: str) -> bool:
    return word == fault.name or fault.code.startswith(word.upper())


def _nearest(faults: Sequence[Fault], word: str) -> str:
    near = difflib.get_close_matches(word, [fault.name for fault in faults], n=1)
    return f"did you mean {near[0]!r}?" if near else "see: holdfast faults list"


def _lines_of(text: str, wanted: str) -> tuple[int, ...]:
    rows = enumerate(text.splitlines(), 1)
    return tuple(i for i, row in rows if wanted and wanted in row and not row.startswith("LINE_OF"))
