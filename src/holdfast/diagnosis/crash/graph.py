"""What the source and the variables say about an error in backward: the loss, what a loop carries
from one turn to the next with its graph, and lines that overwrite tensors in place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from ...records.crash import (
    CarriedLine,
    CodeLine,
    CutLine,
    LossLine,
    OverwritingLine,
    RaisedException,
    StepLine,
)
from ...source.assignments import attribute_line
from ...source.excerpts import excerpt_at
from ...source.ownership import kind_of
from ...source.paths import from_here
from ...source.statements import FoundStatement, statements, statements_around
from ...source.syntax import LOOPS, base_of, called
from .operands import known, value_of
from .origins import assigned_before, file_of_class, function_of
from .traceback_frames import TracebackEntry
from .values import is_tensor

_LINES = 8
_DEPTH = 3
_WEIGHTS = 64
_IN_PLACE = re.compile(r"[a-z0-9]_$")
# End with an underscore and change no tensor that backward needs.
_HARMLESS = {"requires_grad_", "zero_", "clip_grad_norm_", "clip_grad_value_", "unscale_"}


def facts(blamed: Sequence[TracebackEntry], models: Sequence[Any]) -> RaisedException:
    """Measurements for the rules about backward."""
    users = [call for call in blamed if call.is_users]
    if not users:
        return RaisedException()
    last = users[-1]
    loop = _loop(last)
    # A training step in a function of its own has its loop elsewhere.
    scope = loop or function_of(last)
    files = dict.fromkeys([last.file, *_files(models), *(call.file for call in users)])
    loss = _loss(last)
    return RaisedException(
        carried=(*_carried(last, loop), *_kept(models)),
        in_place=tuple(line for file in files for line in _overwrites(file))[:_LINES],
        backward_lines=tuple(
            CodeLine(**_place(last.file, node.lineno)) for node in _calls(scope, "backward")
        ),
        step_lines=tuple(_step(node, last, models) for node in _calls(scope, "step")),
        no_grad=next(filter(None, map(_without_grad, reversed(users))), None),
        trainable=sum(p.requires_grad for model in models for p in model.parameters())
        if models
        else -1,
        weights=tuple(
            (name, tuple(int(s) for s in weight.shape), int(weight._version))
            for model in models
            for name, weight in _weights(model, last)
        )[:_WEIGHTS],
        loss=loss,
        cuts=None if loss is None else _cuts(last, loop),
    )


def _loop(call: TracebackEntry) -> ast.stmt | None:
    """The innermost loop around a call."""
    around = (found.node for found in reversed(statements_around(call.file, call.line)))
    return next((node for node in around if isinstance(node, LOOPS)), None)


def _without_grad(call: TracebackEntry) -> CodeLine | None:
    """The ``with torch.no_grad()`` around a call, or the decorator of its function."""
    function = function_of(call)
    first = function.lineno if function is not None else 0
    for node, _, _ in statements(call.file):
        if not isinstance(node, ast.With) or not any(map(_switches_off, _contexts(node))):
            continue
        if first <= node.lineno < call.line <= (node.end_lineno or 0):
            return CodeLine(**_place(call.file, node.lineno))
    for decorator in getattr(function, "decorator_list", ()):
        if _switches_off(decorator):
            return CodeLine(**_place(call.file, decorator.lineno))
    return None


def _contexts(node: ast.With) -> list[ast.expr]:
    return [item.context_expr for item in node.items]


def _switches_off(node: ast.expr) -> bool:
    named = node.func if isinstance(node, ast.Call) else node
    word = ast.unparse(named).rpartition(".")[2]
    return word in ("no_grad", "inference_mode")


def _step(node: ast.Call, call: TracebackEntry, models: Sequence[Any]) -> StepLine:
    """A call of ``step``: whose it is, and the weights that it changes."""
    line = StepLine(**_place(call.file, node.lineno))
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    if owner is None:
        return line
    optimizer = value_of(owner, call)
    held: set[int] = set()
    for group in getattr(optimizer, "param_groups", ()) if known(optimizer) else ():
        held |= {id(parameter) for parameter in group["params"]}
    names = [n for model in models for n, weight in _weights(model, call) if id(weight) in held]
    return line.replace(name=ast.unparse(owner), changes=tuple(names[:_WEIGHTS]))


def _weights(model: Any, call: TracebackEntry) -> Iterator[tuple[str, Any]]:
    """The weights of a model, behind the name that the failing function has for it."""
    held = dict(call.frame.f_locals)
    fields = getattr(held.get("self"), "__dict__", {})
    held |= {f"self.{name}": value for name, value in fields.items()}
    name = next((name for name, value in held.items() if value is model), "")
    for path, weight in model.named_parameters():
        yield f"{name}.{path}" if name and name != "self" else path, weight


def _calls(loop: ast.stmt | None, name: str) -> list[ast.Call]:
    if loop is None:
        return []
    found = [n for n in ast.walk(loop) if isinstance(n, ast.Call) and called(n) == name]
    return found[:_LINES]


def _carried(call: TracebackEntry, loop: ast.stmt | None) -> Iterator[CarriedLine]:
    """Variables that a turn of the loop reads before it writes them, and that hold a graph."""
    if loop is None:
        return
    body: list[ast.stmt] = getattr(loop, "body", [])
    first_read: dict[str, tuple[int, int]] = {}
    written: dict[str, int] = {}
    for part in (p for statement in body for p in ast.walk(statement)):
        if isinstance(part, ast.AugAssign):  # reads what it writes
            first_read.setdefault(ast.unparse(part.target), (part.lineno, part.col_offset))
        if not isinstance(part, ast.Name | ast.Attribute):
            continue
        name = ast.unparse(part)
        at = part.lineno, part.col_offset
        if isinstance(part.ctx, ast.Store):
            written[name] = max(written.get(name, 0), part.lineno)
        elif isinstance(part.ctx, ast.Load) and at < first_read.get(name, (1 << 60, 0)):
            first_read[name] = at
    for name, line in written.items():
        # On the same line the right side is read first.
        if name not in first_read or first_read[name][0] > _first_write(body, name):
            continue
        value = value_of(cast("ast.expr", ast.parse(name, mode="eval").body), call)
        if has_graph(value):
            yield CarriedLine(name=name, **_place(call.file, line))


def _first_write(body: Sequence[ast.stmt], name: str) -> int:
    lines = [
        part.lineno
        for statement in body
        for part in ast.walk(statement)
        if isinstance(part, ast.Name | ast.Attribute)
        and isinstance(part.ctx, ast.Store)
        and ast.unparse(part) == name
    ]
    return min(lines, default=1 << 60)


def _kept(models: Iterable[Any]) -> Iterator[CarriedLine]:
    """Attributes of modules that hold a graph: a state that outlives its step."""
    for model in models:
        for path, module in model.named_modules():
            for name, value in vars(module).items():
                if not name.startswith("_") and has_graph(value):
                    file = file_of_class(type(module))
                    line = attribute_line(file, name)
                    place = _place(file, line) if line else {}
                    yield CarriedLine(name=f"self.{name}", path=path, **place)


def has_graph(value: Any, depth: int = 0) -> bool:
    """Whether a value holds a tensor that was computed from weights."""
    if is_tensor(value):
        return value.grad_fn is not None
    if depth < _DEPTH and isinstance(value, list | tuple):
        return any(has_graph(part, depth + 1) for part in cast("list[Any]", value)[:8])
    return False


def _files(models: Iterable[Any]) -> Iterator[str]:
    """The user's files that define the models."""
    for model in models:
        for module in model.modules():
            file = file_of_class(type(module))
            if file and kind_of(file) == "user":
                yield file


def _overwrites(file: str) -> Iterator[OverwritingLine]:
    """Lines of a file that change a tensor in place, and the line that made it."""
    for found in statements(file):
        node = found.node
        target, how = _overwritten(node)
        if not target or (not found.functions and "weight" in target):
            continue
        made = _maker(file, found, target)
        # A number that is counted looks the same: what is overwritten was computed by a call.
        if how == "augmented" and "(" not in made:
            continue
        yield OverwritingLine(name=target, how=how, made=made, **_place(file, node.lineno))


def _overwritten(node: ast.stmt) -> tuple[str, str]:
    if isinstance(node, ast.AugAssign):
        return ast.unparse(base_of(node.target)), "augmented"
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        return ast.unparse(base_of(node.targets[0])), "item"
    for part in ast.walk(node) if not hasattr(node, "body") else ():
        if not isinstance(part, ast.Call):
            continue
        name = called(part)
        if (
            _IN_PLACE.search(name)
            and name not in _HARMLESS
            and isinstance(part.func, ast.Attribute)
        ):
            if ast.unparse(part.func.value).split(".")[0] in ("init", "nn", "torch"):
                continue
            return ast.unparse(part.func.value), f"{name}()"
        if any(
            keyword.arg == "inplace" and getattr(keyword.value, "value", None) is True
            for keyword in part.keywords
        ):
            return ast.unparse(part.func), "inplace=True"
    return "", ""


def _maker(file: str, found: FoundStatement, target: str) -> str:
    """The expression that the overwritten name was assigned before."""
    best = ""
    for each in statements(file):
        other = each.node
        if not isinstance(other, ast.Assign) or other.lineno >= found.node.lineno:
            continue
        if each.names == found.names and target in [ast.unparse(t) for t in other.targets]:
            best = ast.unparse(other.value)
    return best[:160]


def _loss(call: TracebackEntry) -> LossLine | None:
    """The name that backward is called on, and the line that made it."""
    node = call.expression() or call.statement()
    for part in ast.walk(node) if node is not None else ():
        if isinstance(part, ast.Call) and called(part) == "backward":
            owner = part.func.value if isinstance(part.func, ast.Attribute) else None
            if isinstance(owner, ast.Call) and owner.args:  # scaler.scale(loss).backward()
                owner = owner.args[0]
            if isinstance(owner, ast.Name):
                made = assigned_before(owner.id, call)
                loop = _loop(call)
                # A function that takes one step is called by a loop elsewhere.
                inside = None
                if made is not None and loop is not None:
                    inside = made.lineno >= loop.lineno
                place = _place(call.file, made.lineno) if made else {}
                return LossLine(name=owner.id, in_loop=inside, **place)
    return None


_CUTS = {"detach", "item", "numpy", "tolist", "argmax", "no_grad", "inference_mode", "data",
         "tensor", "from_numpy", "round", "sign", "requires_grad_", "as_tensor"}  # fmt: skip


def _cuts(call: TracebackEntry, loop: ast.stmt | None) -> tuple[CutLine, ...]:
    """Lines of the loop, or of the function, that cut the graph."""
    found: list[CutLine] = []
    first, last = (loop.lineno, call.line) if loop is not None else (0, call.line)
    for node, _, _ in statements(call.file):
        if not first <= node.lineno < last or (hasattr(node, "body") and node is loop):
            continue
        parts = getattr(node, "items", None) or ([node] if not hasattr(node, "body") else [])
        for part in (p for each in parts for p in ast.walk(each)):
            word = called(part) if isinstance(part, ast.Call) else getattr(part, "attr", "")
            if word in _CUTS:
                found.append(CutLine(what=word, **_place(call.file, node.lineno)))
                break
    return tuple(found[:_LINES])


def _place(file: str, line: int) -> dict[str, Any]:
    """The fields of a ``CodeLine`` that say where it stands."""
    code = " ".join(excerpt_at(file, line).code.split())
    return {"file": from_here(file), "line": line, "code": code[:160]}
