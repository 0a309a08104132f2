"""The line of an evaluation whose graphs nobody uses, and the change of it that harms nothing.

The line at work is mostly in a model, which training calls as well. The one to name is the call
that leads there and that training does not come by.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from typing import Any

from ..source.loops import head_of
from ..source.owner import user_modules
from ..source.place import place_told
from ..source.training_calls import Training, statement_at, training_in

Lines = Sequence[tuple[str, int, str]]
"""File, line and function of the user's calls, innermost first."""

# Files of a project that are read.
_FILES = 48


def told(calls: Lines) -> dict[str, Any]:
    """The line to name and where ``no_grad`` may stand, as the data of an event.

    ``fix`` is ``function``, ``statement``, ``shared`` (training runs the very line, too) or empty
    where the source does not tell; ``loop`` whether the loop around the line may stand inside too.
    """
    training = training_in(_files(calls))
    file, line, function = _named(calls, training)
    found = statement_at(file, line)
    data: dict[str, Any] = {"function": function, "fix": "", "loop": False}
    if found is not None and training.known:
        data["fix"] = _fix(file, found.node, function, training)
        loop = found.loops[-1] if found.loops else None
        data["loop"] = loop is not None and not _trained(file, loop, training)
    if data["fix"] == "function":
        data["head"] = head_of(file, line)
    return data | place_told(file, line)


def _named(calls: Lines, training: Training) -> tuple[str, int, str]:
    """The innermost call in a function that no loss is made by."""
    for file, line, function in calls:
        if not {function, f".{function}"} & training.used:
            return file, line, function
    return calls[-1]


def _fix(file: str, node: ast.stmt, function: str, training: Training) -> str:
    at, own = (file, node.lineno), {function, f".{function}"}
    if at in training.lines:
        return "shared"
    if at in training.handed or training.reached_by(node):
        return ""
    if function != "<module>" and not own & (training.used | training.trains):
        return "function"
    if hasattr(node, "body") or own & training.used:
        return ""
    return "statement"


def _trained(file: str, loop: ast.stmt, training: Training) -> bool:
    lines = {(file, part.lineno) for part in ast.walk(loop) if isinstance(part, ast.stmt)}
    return bool(lines & training.lines) or training.reached_by(loop)


def _files(calls: Lines) -> tuple[str, ...]:
    modules = (getattr(sys.modules.get(name), "__file__", None) for name in user_modules())
    found = dict.fromkeys([*(file for file, _, _ in calls), *filter(None, modules)])
    return tuple(found)[:_FILES]
