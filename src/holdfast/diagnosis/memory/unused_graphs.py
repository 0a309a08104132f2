"""The line of an evaluation whose graphs nobody uses, and the change of it that harms nothing.

The line at work is mostly in a model, which training calls as well. The one to name is the call
that leads there and that training does not come by.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence

from ...records.memory import Fix, UnusedGraphLine
from ...source.contents import name_of_torch
from ...source.ownership import user_modules
from ...source.statements import function_at, function_head, statement_at
from ...source.syntax import FUNCTIONS
from ...source.training_calls import TrainingCalls, training_in
from .code_line import code_line

Lines = Sequence[tuple[str, int, str]]
"""File, line and function of the user's calls, innermost first."""

# Files of a project that are read.
_FILES = 48


def line_of(calls: Lines) -> UnusedGraphLine:
    """The line to name, and where ``no_grad`` may stand as far as the source tells."""
    calls = _in_functions(calls)
    training = training_in(_files(calls))
    file, line, function = _named(calls, training)
    found = statement_at(file, line)
    fix: Fix = ""
    around = False
    if found is not None and training.known and not _puts_off(found.node):
        fix = _fix(file, found.node, function, training)
        loop = found.loops[-1] if found.loops else None
        around = loop is not None and not _trained(file, loop, training)
    return UnusedGraphLine(
        function=function,
        fix=fix,
        loop=around,
        torch=name_of_torch(file),
        head=function_head(file, line) if fix == "function" else (),
        **vars(code_line(file, line, "trace")),
    )


def _in_functions(calls: Lines) -> Lines:
    """The calls with the function around a comprehension in its place, and without lambdas.

    A comprehension is part of its statement. What a lambda does is done where it is called.
    """
    plain = [call for call in calls if call[2] != "<lambda>"] or calls
    return [
        (file, line, name if name[:1] != "<" else function_at(file, line) or "<module>")
        for file, line, name in plain
    ]


def _puts_off(node: ast.stmt) -> bool:
    """Whether a statement only prepares what builds the graphs: ``with`` around it does nothing."""
    value = getattr(node, "value", None)
    return isinstance(node, FUNCTIONS) or isinstance(value, ast.GeneratorExp | ast.Lambda)


def _named(calls: Lines, training: TrainingCalls) -> tuple[str, int, str]:
    """The innermost call in a function that no loss is made by."""
    for file, line, function in calls:
        if not {function, f".{function}"} & training.used:
            return file, line, function
    return calls[-1]


def _fix(file: str, node: ast.stmt, function: str, training: TrainingCalls) -> Fix:
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


def _trained(file: str, loop: ast.stmt, training: TrainingCalls) -> bool:
    lines = {(file, part.lineno) for part in ast.walk(loop) if isinstance(part, ast.stmt)}
    return bool(lines & training.lines) or training.reached_by(loop)


def _files(calls: Lines) -> tuple[str, ...]:
    modules = (getattr(sys.modules.get(name), "__file__", None) for name in user_modules())
    found = dict.fromkeys([*(file for file, _, _ in calls), *filter(None, modules)])
    return tuple(found)[:_FILES]
