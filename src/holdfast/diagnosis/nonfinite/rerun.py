"""Rerun the computation of a loss, from the frame in which ``backward`` is called on it.

The user's function is still running and its variables still hold the batch. Found by reading the
source: which statements of this function made the loss out of values that are there (inputs,
targets, the model). Those, and no others, are compiled into a function of their own with the
original line numbers and called again. Where that cannot be told for certain (a statement with
effects of its own, a loss from a generator, no source) the answer is "no", and the caller
waits for the next occurrence instead.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from torch import Tensor

from ...source.files import UNREADABLE, tree_of
from ...source.frames import frames_from
from ...source.names import writes
from ...source.ownership import kind_of
from ...source.slices import NotRepeatable, Position, before, effects, sliced
from ...source.statements import Scope, scope_at
from ...source.syntax import calls
from .tensor_stats import bad, floating


def calls_of_backward(inner: FrameType | None) -> Iterator[tuple[FrameType, ast.Call]]:
    """The running frames that call ``backward``, and the calls, the likeliest first.

    From inside ``optimizer.step()``: the calls before the current line, nearest first.
    """
    for frame in frames_from(inner):
        # A framework has many frames, and to parse one of its files takes longer than a step.
        if kind_of(frame.f_code.co_filename) == "torch" or not _names(frame.f_code, "backward"):
            continue
        try:
            nodes = list(ast.walk(_function(frame)))
        except NotRepeatable:
            continue
        passed = [n for n in nodes if calls(n, "backward") and n.lineno <= frame.f_lineno]
        yield from ((frame, call) for call in sorted(passed, key=_line, reverse=True))


def recipe(frame: FrameType, call: ast.Call, *, as_it_is: bool = False) -> Callable[[], Any]:
    """A function that computes again what a running frame called ``backward`` on.

    Args:
        frame: the running frame.
        call: its call of ``backward``.
        as_it_is: use data that are bad as they are now; else they are made again, which is
            impossible after ``x = x / x.std()``: what x was is gone.
    """
    wanted, line = _root(call), call.lineno
    while isinstance(wanted, ast.Name) and _is_parameter(frame, wanted.id, line):
        frame, wanted = _passed_in(frame, wanted.id)
        line = frame.f_lineno
    if wanted is None:
        raise NotRepeatable("what backward was called on is not in the source")
    return _compiled(frame, wanted, (wanted.lineno, wanted.col_offset), as_it_is=as_it_is)


def last_written(frame: FrameType, call: ast.Call, value: Tensor) -> tuple[str, int] | None:
    """The variable that holds a tensor, and the line that gave it in this turn of the loop."""
    held = {name for name, one in frame.f_locals.items() if one is value}
    passed, _ = before(_body(_function(frame)), (call.lineno, call.col_offset))
    for statement in reversed(passed):
        for name in writes(statement) & held:
            inner = (n for n in ast.walk(statement) if isinstance(n, ast.stmt) and not _inner(n))
            return name, max(n.lineno for n in inner if name in writes(n))
    return None


def recipe_of(loss: Tensor, inner: FrameType | None) -> Callable[[], Any]:
    """A function that computes a tensor again, from the innermost frame that made it.

    Found by the object itself: whatever library stands between, some frame holds the loss in a
    variable, or in what a variable holds, that one of its own statements has made.
    """
    for frame in frames_from(inner):
        if kind_of(frame.f_code.co_filename) == "torch":
            continue
        for name, expression in _references(frame, loss):
            with contextlib.suppress(NotRepeatable):
                passed, _ = before(_body(_function(frame)), _position(frame))
                if any(name in writes(statement) for statement in passed):
                    wanted = ast.parse(expression, mode="eval").body
                    return _compiled(frame, wanted, _position(frame))
    raise NotRepeatable("no running function has made the loss")


def _references(frame: FrameType, loss: Tensor) -> Iterator[tuple[str, str]]:
    """Variables that are the loss or hold it, and the expression that leads to it."""
    for name, value in list(frame.f_locals.items()):
        if value is loss:
            yield name, name
        elif isinstance(value, dict):
            yield from ((name, f"{name}[{k!r}]") for k, v in value.items() if v is loss)
        elif isinstance(value, list | tuple):
            yield from ((name, f"{name}[{i}]") for i, v in enumerate(value[:64]) if v is loss)
        elif name != "self" and isinstance(getattr(value, "__dict__", None), dict):
            yield from ((name, f"{name}.{k}") for k, v in vars(value).items() if v is loss)


def _position(frame: FrameType) -> Position:
    """Where a frame is: several statements may stand on one line."""
    _, _, column, _ = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    return frame.f_lineno, column or 0


def _names(code: CodeType, name: str) -> bool:
    """Whether a function or one inside it uses something with ``name`` in its name."""
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    own = code.co_names + code.co_varnames + code.co_cellvars + code.co_freevars
    return any(name in one for one in own) or any(_names(one, name) for one in inner)


def _function(frame: FrameType) -> Scope:
    code = frame.f_code
    if tree_of(code.co_filename) is UNREADABLE:
        raise NotRepeatable("its source cannot be read")
    first = 0 if code.co_name == "<module>" else code.co_firstlineno
    found = scope_at(code.co_filename, first)
    if found is None:
        raise NotRepeatable("its source was not found")
    return found


def _root(call: ast.Call) -> ast.expr | None:
    """What is differentiated: ``loss.backward()``, ``backward(loss)``, ``x.backward(loss)``."""
    match call:
        # accelerator.backward(loss), fabric.backward(loss), autograd.backward(loss)
        case ast.Call(args=[first, *_]) if not _is_gradient(first):
            return first
        # scaler.scale(loss).backward()
        case ast.Call(
            func=ast.Attribute(value=ast.Call(func=ast.Attribute(attr="scale"), args=[loss, *_]))
        ):
            return loss
        case ast.Call(func=ast.Attribute(value=owner)):
            return owner
        case _:
            return None


def _is_gradient(argument: ast.expr) -> bool:
    """``out.backward(torch.ones_like(out))``: a gradient and not the loss, as ``*args`` are."""
    text = ast.unparse(argument)
    return isinstance(argument, ast.Starred) or "ones" in text or "grad" in text


def _line(node: ast.Call) -> int:
    return node.lineno


def _is_parameter(frame: FrameType, name: str, line: int) -> bool:
    """Whether a name is an argument that the function has at most made another form of.

    ``loss = loss / self.passes``: what the caller gave for it is what went wrong, or it was the
    division, and then computing the caller's part again will find nothing.
    """
    if name not in _parameters(frame):
        return False
    body = [s for s in _body(_function(frame)) if s.lineno < line]
    writing = [n for s in body for n in ast.walk(s) if isinstance(n, ast.stmt) and not _inner(n)]
    return all(name in _reads_of(n) for n in writing if name in writes(n))


def _parameters(frame: FrameType) -> tuple[str, ...]:
    code = frame.f_code
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _inner(statement: ast.stmt) -> bool:
    """Whether a statement holds others, which are looked at themselves."""
    return isinstance(getattr(statement, "body", None), list)


def _reads_of(statement: ast.stmt) -> set[str]:
    """Names that an assignment makes its value of."""
    if isinstance(statement, ast.AugAssign):
        return {ast.unparse(statement.target)}
    value = getattr(statement, "value", None)
    return set() if value is None else {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}


def _passed_in(frame: FrameType, parameter: str) -> tuple[FrameType, ast.expr]:
    """The caller of a function, and the expression it passed for a parameter."""
    callers = frames_from(frame.f_back)
    caller = next((f for f in callers if kind_of(f.f_code.co_filename) != "torch"), None)
    if caller is None:
        raise NotRepeatable("the loss comes from outside of all source files")
    names = frame.f_code.co_varnames
    line = caller.f_lineno
    for node in ast.walk(_function(caller)):
        if not calls(node, frame.f_code.co_name):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if not any(isinstance(argument, ast.Starred) for argument in node.args):
            given |= zip(names[names[:1] == ("self",) :], node.args, strict=False)
        if parameter in given and node.lineno <= line <= (node.end_lineno or line):
            return caller, given[parameter]
    raise NotRepeatable("the loss comes from a caller that does not show it")


def _compiled(
    frame: FrameType, wanted: ast.expr, at: Position, *, as_it_is: bool = False
) -> Callable[[], Any]:
    passed, around = before(_body(_function(frame)), at)
    values = {**frame.f_locals}
    why_not = effects(wanted)
    if why_not:
        raise NotRepeatable(why_not)
    own = frame.f_code.co_varnames
    given = _arguments(frame, [name for name in _parameters(frame) if name not in values])
    needed, kept = sliced(
        passed,
        wanted,
        # What the function has deleted since has to be made again too.
        lambda name: (
            (name in own and name not in values)
            or any(t.grad_fn is not None for t in _tensors(_value(name, values)))
        ),
        lambda name: not as_it_is and any(map(bad, _tensors(_value(name, values)))),
        given,
    )
    values |= given
    inner: list[ast.stmt] = [*kept, ast.Return(wanted)]
    for manager in reversed(around):
        inner = [ast.copy_location(ast.With(items=manager.items, body=inner), manager)]
    names = sorted(name for name in needed if name in values)
    arguments = ast.arguments(
        posonlyargs=[], args=[ast.arg(n) for n in names], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    function = ast.copy_location(
        ast.FunctionDef(name="again", args=arguments, body=inner, decorator_list=[]), wanted
    )
    tree = ast.fix_missing_locations(ast.Module(body=[function], type_ignores=[]))
    scope: dict[str, Any] = {}
    exec(compile(tree, frame.f_code.co_filename, "exec"), frame.f_globals, scope)
    # Whoever names the function of a line shall name the user's.
    scope["again"].__code__ = scope["again"].__code__.replace(co_name=frame.f_code.co_name)
    attributes = [n for s in kept for n in writes(s) if n.count(".") == 1]

    def again() -> Any:
        owners = [(values.get(n.split(".")[0]), n.split(".")[1]) for n in attributes]
        held = [(owner, name, getattr(owner, name, None)) for owner, name in owners]
        try:
            return scope["again"](**{name: values[name] for name in names})
        finally:
            for owner, name, value in held:
                setattr(owner, name, value)

    return again


def _arguments(frame: FrameType, parameters: Sequence[str]) -> dict[str, Any]:
    """Arguments that a function has deleted, where its caller still has them in a variable."""
    found: dict[str, Any] = {}
    for name in parameters:
        with contextlib.suppress(NotRepeatable):
            caller, passed = _passed_in(frame, name)
            if isinstance(passed, ast.Name) and passed.id in caller.f_locals:
                found[name] = caller.f_locals[passed.id]
    return found


def _body(function: Scope) -> list[ast.stmt]:
    return [] if isinstance(function, ast.Lambda) else function.body


def _tensors(value: Any) -> Iterator[Tensor]:
    """The floating tensors a variable holds: itself, in containers, in its attributes."""
    inner = getattr(value, "__dict__", None)
    if isinstance(inner, dict) and not isinstance(value, Tensor) and not callable(value):
        value = inner
    return floating(value)


def _value(name: str, values: dict[str, Any]) -> Any:
    """What a name, plain or with one dot, stands for now."""
    owner, _, attribute = name.partition(".")
    if not attribute:
        return values.get(owner)
    return getattr(values.get(owner), attribute, None)
