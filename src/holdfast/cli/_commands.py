"""The list of commands, and how one is found."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from pathlib import Path
from typing import Any

from ..errors import UsageError

COMMANDS = (
    ("run", "holdfast.cli.run", "RunCommand"),
    ("report", "holdfast.cli.report", "ReportCommand"),
    ("check", "holdfast.cli.check", "CheckCommand"),
    ("explain", "holdfast.cli.explain", "ExplainCommand"),
    ("checkpoint", "holdfast.cli.checkpoint", "CheckpointCommand"),
    ("demo", "holdfast.cli.demo", "DemoCommand"),
)
"""Name, module and class of every command, in the order of the help."""

_SPACE = 12


def find_command(word: str) -> Any:
    """The command of this name; a wrong name is a ``UsageError`` with the nearest."""
    for name, module, cls in COMMANDS:
        if name == word:
            return getattr(importlib.import_module(module), cls)()
    names = [name for name, _, _ in COMMANDS]
    near = difflib.get_close_matches(word, names, n=1)
    if word.startswith("-"):
        raise UsageError(f"unknown option {word!r} before a command; see: holdfast --help")
    if word.endswith(".py") and Path(word).exists():
        raise UsageError(f"no command {word!r}; to run a script: holdfast run {word}")
    hint = f"did you mean {near[0]!r}? " if near else f"there are {', '.join(names)}; "
    raise UsageError(f"no command {word!r}; {hint}see: holdfast --help")


def overview() -> str:
    """The help of ``holdfast`` itself: every command with the first line of its docstring."""
    lines = ["usage: holdfast COMMAND ...", ""]
    for name, module, cls in COMMANDS:
        if importlib.util.find_spec(module) is None:
            continue
        doc = getattr(importlib.import_module(module), cls).__doc__ or ""
        lines.append(f"  {name.ljust(_SPACE)}{doc.strip().splitlines()[0].rstrip('.')}")
    lines += [
        "",
        f"  {'--version'.ljust(_SPACE)}Print the version",
        "",
        "holdfast COMMAND --help tells more about a command.",
    ]
    return "\n".join(lines)
