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
import linecache
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from torch import Tensor

from ..source.place import frames_from, kind_of
from ..source.slicing import (
    NotRepeatable,
    before,
    calls,
    effects,
    sliced,
    writes,
)
from .tensor_stats import bad, floating

_CLIMB = 8
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module


def calls_of_backward(inner: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    """The running frames that call ``backward``, and on which lines, the likeliest first.

    From inside ``optimizer.step()``: the calls before the current line, nearest first.
    """
    for frame in frames_from(inner):
        if kind_of(frame.f_code.co_filename) == "torch":
            continue
        try:
            function = _function(frame)
        except NotRepeatable:
            continue
        lines = {n.lineno for n in ast.walk(function) if calls(n, "backward")}
        earlier = sorted((n for n in lines if n <= frame.f_lineno), reverse=True)
        yield from ((frame, line) for line in earlier)


def recipe_of(loss: Tensor, inner: FrameType | None) -> Callable[[], Any]:
    """A function that computes a tensor again, from the innermost frame that made it.

    Found by the object itself: whatever library stands between, some frame holds the loss in a
    variable, or in what a variable holds, that one of its own statements has made.
    """
    reason = "no running function has made the loss"
    for frame in frames_from(inner):
        if kind_of(frame.f_code.co_filename) == "torch":
            continue
        for name, expression in _holders(frame, loss):
            try:
                passed, _ = before(_body(_function(frame)), frame.f_lineno)
                if any(name in writes(statement) for statement in passed):
                    wanted = ast.parse(expression, mode="eval").body
                    return _compiled(frame, wanted, frame.f_lineno)
            except NotRepeatable as error:
                reason = str(error)
    raise NotRepeatable(reason)


def _holders(frame: FrameType, loss: Tensor) -> Iterator[tuple[str, str]]:
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


def recipe(frame: FrameType, line: int) -> Callable[[], Any]:
    """A function that computes again what a running frame called ``backward`` on, on ``line``."""
    call = _call_at(frame, line, "backward")
    wanted = None if call is None else _root(call)
    for _ in range(_CLIMB):
        if wanted is None:
            raise NotRepeatable("the call of backward was not found in the source")
        parameter = _as_parameter(frame, wanted, line)
        if parameter is None:
            return _compiled(frame, wanted, line)
        caller = _next_up(frame)
        if caller is None:
            raise NotRepeatable("the loss comes from outside of all source files")
        frame, wanted = caller, _argument(caller, frame, parameter)
        line = frame.f_lineno
    raise NotRepeatable("the loss comes from too far up")


# ---------------------------------------------------------------------- finding the expression


def _function(frame: FrameType) -> Function:
    lines = linecache.getlines(frame.f_code.co_filename)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        raise NotRepeatable("its source cannot be read") from None
    if frame.f_code.co_name == "<module>":
        return tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            if first == frame.f_code.co_firstlineno:
                return node
    raise NotRepeatable("its source was not found")


def _call_at(frame: FrameType, line: int, name: str) -> ast.Call | None:
    """The innermost call with ``name`` in its name on a line."""
    found: ast.Call | None = None
    for node in ast.walk(_function(frame)):
        if not calls(node, name) or not node.lineno <= line <= (node.end_lineno or node.lineno):
            continue
        if found is None or node.lineno >= found.lineno:
            found = node
    return found


def _root(call: ast.Call) -> ast.expr | None:
    """What is differentiated: ``loss.backward()``, ``backward(loss)``, ``x.backward(loss)``."""
    args = [a for a in call.args if not isinstance(a, ast.Starred)]
    if args and not (isinstance(call.func, ast.Attribute) and call.func.attr == "backward"):
        return args[0]
    if not isinstance(call.func, ast.Attribute):
        return None
    owner = call.func.value
    named = isinstance(owner, ast.Name | ast.Attribute)
    # accelerator.backward(loss), fabric.backward(loss), autograd.backward(loss)
    if named and args and not _says_gradient(args[0]):
        return args[0]
    # scaler.scale(loss).backward()
    if (
        isinstance(owner, ast.Call)
        and isinstance(owner.func, ast.Attribute)
        and owner.func.attr == "scale"
        and owner.args
    ):
        return owner.args[0]
    return owner


def _says_gradient(argument: ast.expr) -> bool:
    """``out.backward(torch.ones_like(out))``: the argument is a gradient and not the loss."""
    text = ast.unparse(argument)
    return "ones" in text or "grad" in text


def _as_parameter(frame: FrameType, wanted: ast.expr, line: int) -> str | None:
    """The name of the argument when the expression is just that, not made in this function."""
    if not isinstance(wanted, ast.Name) or frame.f_code.co_name == "<module>":
        return None
    code = frame.f_code
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if wanted.id not in arguments:
        return None
    body = _body(_function(frame))
    made = any(wanted.id in writes(s) for s in body if s.lineno < line)
    return None if made else wanted.id


def _next_up(frame: FrameType) -> FrameType | None:
    for caller in frames_from(frame.f_back):
        if kind_of(caller.f_code.co_filename) != "torch":
            return caller
    return None


def _argument(caller: FrameType, callee: FrameType, parameter: str) -> ast.expr | None:
    call = _call_at(caller, caller.f_lineno, callee.f_code.co_name)
    if call is None:
        return None
    for keyword in call.keywords:
        if keyword.arg == parameter:
            return keyword.value
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return None
    place = callee.f_code.co_varnames.index(parameter)
    if isinstance(call.func, ast.Attribute) and callee.f_code.co_varnames[:1] == ("self",):
        place -= 1
    return call.args[place] if 0 <= place < len(call.args) else None


# ---------------------------------------------------------------------- slicing and compiling


def _compiled(frame: FrameType, wanted: ast.expr, line: int) -> Callable[[], Any]:
    passed, around = before(_body(_function(frame)), line)
    values = {**frame.f_locals}
    why_not = effects(wanted)
    if why_not:
        raise NotRepeatable(why_not)
    own = frame.f_code.co_varnames
    given = set(own[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]) - {"self"}
    needed, kept = sliced(
        passed,
        wanted,
        # What the function has deleted since has to be made again too.
        lambda name: (
            (name in own and name not in values)
            or any(t.grad_fn is not None for t in _tensors(_value(name, values)))
        ),
        lambda name: any(map(bad, _tensors(_value(name, values)))),
        given,
    )
    rewritten = {name for statement in kept for name in writes(statement)}
    for name in needed & given:
        if name in rewritten or name not in values:
            values[name] = _from_caller(frame, name)
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


def _from_caller(frame: FrameType, parameter: str) -> Any:
    """What an argument was when the function was called, as far as its caller still has it."""
    caller = _next_up(frame)
    argument = _argument(caller, frame, parameter) if caller is not None else None
    if caller is None or not isinstance(argument, ast.Name) or argument.id not in caller.f_locals:
        raise NotRepeatable(f"{parameter} has changed since the function was called")
    return caller.f_locals[argument.id]


def _body(function: Function) -> list[ast.stmt]:
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
