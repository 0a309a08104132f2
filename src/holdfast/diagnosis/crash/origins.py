"""Lines of the user's code that made a value of the failing line: the last assignment of a name."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from typing import Any

from ...records.crash import CodeLine
from ...source.assignments import attribute_line
from ...source.excerpts import excerpt_at
from ...source.files import line_at, nodes_of
from ...source.names import writes
from ...source.ownership import kind_of
from ...source.paths import from_here
from ...source.statements import functions_around, statements
from ...source.syntax import called, is_named, targets_of
from .operands import known, value_of
from .traceback_frames import TracebackEntry
from .values import is_module, is_tensor

_CALLERS = 6
Function = ast.FunctionDef | ast.AsyncFunctionDef


def origin(name: str, calls: Sequence[TracebackEntry]) -> CodeLine | None:
    """Where a name of the last call got its value: there, or in the call that passed it on."""
    users = [call for call in calls if call.is_users][-_CALLERS:]
    asked = name  # callers may have another name for it
    while users:
        call = users.pop()
        function = function_of(call)
        found = _assigned(name, call, function)
        if found is not None:
            return _line(call.file, found.lineno, asked)
        passed = _passed(name, function, users[-1] if users else None)
        if passed is None:
            return None
        name = passed
    return None


def assigned_before(name: str, call: TracebackEntry) -> ast.stmt | None:
    """The last statement of a call's function, before its line, that binds a name."""
    return _assigned(name, call, function_of(call))


def made_at(module: Any, calls: Sequence[TracebackEntry]) -> tuple[str, CodeLine | None]:
    """The path of a module in its model, and the line that makes it where that can be told."""
    for call in calls:
        owner: Any = call.frame.f_locals.get("self")
        if not _is_method(call) or not is_module(owner):
            continue
        for path, part in owner.named_modules():
            if part is module:
                found = _construction(owner, path, calls)
                return _path(owner, path, calls), found
    for call in calls:
        for name, value in list(call.frame.f_locals.items()):
            if not is_module(value):
                continue
            for path, part in value.named_modules():
                if part is module:
                    found = _by_variable(name, path, call)
                    return ".".join(filter(None, [name, path])), found
    return "", None


def reshapes(calls: Sequence[TracebackEntry]) -> tuple[CodeLine, ...]:
    """Lines of the script and of its models that fold values into the batch: ``view(-1, N)``."""
    users = [call for call in calls if call.is_users]
    held = [v for call in users for v in list(call.frame.f_locals.values()) if is_module(v)]
    parts = [part for module in held[:4] for part in module.modules()]
    models = (file_of_class(type(part)) for part in parts)
    files = dict.fromkeys([*models, *(call.file for call in reversed(users))])
    found = (
        _line(file, node.lineno, "")
        for file in files
        if kind_of(file) == "user"
        for node in nodes_of(file)
        if isinstance(node, ast.Call) and called(node) in ("view", "reshape")
        if len(node.args) > 1 and ast.unparse(node.args[0]) == "-1"
    )
    return tuple(itertools.islice(found, 4))


def plain_attributes(call: TracebackEntry) -> tuple[CodeLine, ...]:
    """Tensors of the failing expression that a module holds beside its parameters and buffers.

    ``.to(device)``, ``.half()`` and ``to_empty`` leave them as they are.
    """
    found: dict[str, CodeLine] = {}
    for part in ast.walk(call.expression() or call.statement() or ast.Pass()):
        if not isinstance(part, ast.Attribute):
            continue
        owner = value_of(part.value, call)
        if known(owner) and is_module(owner) and is_tensor(vars(owner).get(part.attr)):
            name, file = ast.unparse(part), file_of_class(type(owner))
            line = attribute_line(file, part.attr)
            found[name] = _line(file, line, name) if line else CodeLine(name=name)
    return tuple(found.values())


def _construction(root: Any, path: str, calls: Sequence[TracebackEntry]) -> CodeLine | None:
    """The line of the class of the user's that is nearest to the module, or of a variable."""
    parts = path.split(".") if path else []
    owners = [root]
    for part in parts:
        owners.append(owners[-1]._modules[part])
    for depth in range(len(parts) - 1, -1, -1):
        owner = owners[depth]
        file = file_of_class(type(owner))
        if kind_of(file) != "user":
            continue
        for node, _, _ in statements(file):
            if isinstance(node, ast.ClassDef) and node.name == type(owner).__name__:
                found = _element(node, parts[depth], parts[depth + 1 :], of_self=True)
                if found:
                    return _line(file, found, path)
    for call in calls:
        for name, value in list(call.frame.f_locals.items()):
            if value is root and call.is_users:
                return _by_variable(name, path, call)
    return None


def file_of_class(kind: type) -> str:
    """The file that defines a module class, by the code of its methods; empty where unknown."""
    for name in ("__init__", "forward"):
        code = getattr(vars(kind).get(name), "__code__", None)
        if code is not None:
            return str(code.co_filename)
    return ""


def _path(root: Any, path: str, calls: Sequence[TracebackEntry]) -> str:
    """The path, behind the name of the variable where the root is no class of the user's own."""
    if kind_of(file_of_class(type(root))) == "user":
        return path
    for call in calls:
        for name, value in list(call.frame.f_locals.items()):
            if value is root and call.is_users:
                return f"{name}.{path}" if path else name
    return path


def _by_variable(name: str, path: str, call: TracebackEntry) -> CodeLine | None:
    function = function_of(call)
    assigned = _assigned(name, call, function)
    if assigned is None:
        return None
    line = _element(assigned, name, path.split(".") if path else [], of_self=False)
    return _line(call.file, line or assigned.lineno, name)


def _element(node: ast.AST, name: str, path: Sequence[str], *, of_self: bool) -> int:
    """The line where ``name`` is assigned, or the element of a container that a path leads to."""
    for part in ast.walk(node):
        if not isinstance(part, ast.Assign):
            continue
        target = part.targets[0]
        if not is_named(target, name) or isinstance(target, ast.Attribute) is not of_self:
            continue
        value: ast.expr = part.value
        for step in path:
            inner = _argument(value, step)
            if inner is None:
                break
            value = inner
        return value.lineno
    return 0


def _argument(value: ast.expr, step: str) -> ast.expr | None:
    if not isinstance(value, ast.Call) or not step.isdigit():
        return None
    given = value.args
    if len(given) == 1 and isinstance(given[0], ast.List | ast.Tuple):
        given = given[0].elts
    if any(isinstance(one, ast.Starred) for one in given) or int(step) >= len(given):
        return None
    return given[int(step)]


def _is_method(call: TracebackEntry) -> bool:
    return call.frame.f_code.co_varnames[:1] == ("self",)


def function_of(call: TracebackEntry) -> Function | None:
    """The syntax tree of the function of a call; None at the top of a file."""
    around = functions_around(call.file, call.line)
    return next((node for node in reversed(around) if node.name == call.function), None)


def _assigned(name: str, call: TracebackEntry, function: Function | None) -> ast.stmt | None:
    """The last statement of the function before the line that binds a name."""
    best: ast.stmt | None = None
    own = () if function is None else (function,)
    for node, _, functions in statements(call.file):
        if functions[-1:] == own and node.lineno < call.line and name in _binds(node):
            # The statement that failed may itself bind the name once more.
            if (node.end_lineno or 0) >= call.line and not hasattr(node, "body"):
                continue
            best = node
    return best


def _binds(node: ast.stmt) -> set[str]:
    """Names that a statement itself binds: of a loop those of its head."""
    if hasattr(node, "body"):
        return set[str]().union(*map(writes, targets_of(node)))
    return writes(node)


def _passed(name: str, function: Function | None, caller: TracebackEntry | None) -> str | None:
    """The caller's name for a parameter; None where it is none or was computed in the call."""
    if function is None or caller is None:
        return None
    parameters = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if name not in parameters:
        return None
    node = caller.expression()
    if not isinstance(node, ast.Call):
        return None
    for keyword in node.keywords:
        if keyword.arg == name:
            return _name(keyword.value)
    position = parameters.index(name) - (parameters[:1] == ["self"])
    if not 0 <= position < len(node.args):
        return None
    return _name(node.args[position])


def _name(node: ast.expr) -> str | None:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else None


def _line(file: str, line: int, name: str) -> CodeLine:
    source = excerpt_at(file, line)
    # Of a statement of many lines the one that is meant.
    text = source.code if source.start == line else line_at(file, line)
    code = " ".join(text.split())
    return CodeLine(name=name, file=from_here(file), line=line, code=code[:160])


def names_in(call: TracebackEntry) -> list[str]:
    """The names in the failing expression that hold something, in their order."""
    node = call.expression() or call.statement()
    if node is None:
        return []
    found: list[str] = []
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and known(value_of(part, call)) and part.id not in found:
            found.append(part.id)
    return found
