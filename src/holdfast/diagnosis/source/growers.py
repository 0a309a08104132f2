"""What the source says about a name: which statements let it grow, which keep it small."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

_GROW = {"append", "extend", "add", "update", "insert", "appendleft", "extendleft", "setdefault",
         "push", "put", "put_nowait", "write"}  # fmt: skip
REGISTERS = re.compile(r"\bregister_(\w*hook|parametrization)\(")
_DRAWS = re.compile(r"\.(draw|draw_idle|savefig|pause|flush_events|print_png|tostring_rgb)\(")
_ADDS = re.compile(r"\.(plot|scatter|bar|hist|imshow|text|annotate|fill_between|step|errorbar)\(")
_CLEARS = re.compile(r"\.(clear|cla|clf|close|remove|set_data|set_offsets|subplots|figure)\(")
_SHRINK = {"clear", "pop", "popleft", "popitem", "remove", "discard", "get_nowait"}


@dataclass(slots=True)
class Habits:
    """How a file treats one name."""

    grows: list[int] = field(default_factory=list[int])
    """First lines of statements that let it grow, inside a loop or a function."""
    shrinks: bool = False
    """Something takes items out, or begins anew inside a loop or a function that is called."""
    tested: bool = False
    """What is in it is asked before it grows, as caches do."""
    capped: bool = False
    """It grows only while it is shorter than something."""
    detached: bool = False
    """It is cut from its graph somewhere."""
    consumed: bool = False
    """Backward is called on something made of it."""
    assigned: list[int] = field(default_factory=list[int])
    """First lines of statements inside a loop or a function that give the name a value."""


def habits(file: str, name: str, scope: str = "") -> Habits:
    """Read a file once more and look for one name (a variable or an attribute).

    Args:
        file: the file.
        name: the last name of the path, without owner.
        scope: the function a local variable lives in; empty for attributes and globals.
    """
    return _habits("".join(linecache.getlines(file)), name, scope)


def _tree(file: str) -> ast.Module:
    """The statements of a file; none where it cannot be read as Python."""
    return _parsed("".join(linecache.getlines(file)))


@lru_cache(maxsize=8)
def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


@lru_cache(maxsize=256)
def _habits(source: str, name: str, scope: str) -> Habits:
    found = Habits()
    tree = _parsed(source)
    found.consumed = _consumed(tree, name)
    for node, looped, function in _statements(tree):
        if scope and function and scope not in function.split("."):
            continue
        initial = function.rsplit(".", 1)[-1] in ("__init__", "__post_init__", "setup")
        _look(node, name, looped, bool(function) and not initial, found)
    found.assigned = [abs(line) for line in found.assigned]
    return found


def _statements(tree: ast.Module) -> Iterator[tuple[ast.stmt, bool, str]]:
    """Every statement, whether it stands in a loop, and the functions around it."""
    todo: list[tuple[ast.stmt, bool, str]] = [(s, False, "") for s in reversed(tree.body)]
    while todo:
        node, looped, function = todo.pop()
        yield node, looped, function
        inner_loop = looped or isinstance(node, ast.For | ast.While | ast.AsyncFor)
        inner = function
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner_loop, inner = False, f"{function}.{node.name}".strip(".")
        for part in ("body", "orelse", "finalbody"):
            todo += [(s, inner_loop, inner) for s in reversed(getattr(node, part, []))]
        for handler in getattr(node, "handlers", []):
            todo += [(s, inner_loop, inner) for s in reversed(handler.body)]


def _named(node: ast.AST | None, name: str) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == name
    return isinstance(node, ast.Name) and node.id == name


def _inside(node: ast.AST | None, name: str) -> bool:
    return node is not None and any(_named(part, name) for part in ast.walk(node))


def _base(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


def _look(node: ast.stmt, name: str, looped: bool, called: bool, found: Habits) -> None:
    again = looped or called
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        _assignment(node, name, looped, again, found)
    elif isinstance(node, ast.Delete):
        found.shrinks |= any(_named(_base(target), name) for target in node.targets)
    test = getattr(node, "test", None)
    if test is not None:
        _test(test, name, found)
        if isinstance(node, ast.If):
            found.capped |= _caps(node, name)
    if isinstance(node, ast.Try) and any("KeyError" in ast.dump(h) for h in node.handlers):
        found.tested |= any(_inside(s, name) for s in node.body)
    if hasattr(node, "body"):
        return  # what is inside comes by itself
    for part in ast.walk(node):
        if isinstance(part, ast.IfExp):
            _test(part.test, name, found)
        if isinstance(part, ast.comprehension):
            for test in part.ifs:
                _test(test, name, found)
        if not isinstance(part, ast.Call) or not isinstance(part.func, ast.Attribute):
            continue
        method, owner = part.func.attr, part.func.value
        if _named(_base(owner), name):
            if method in _GROW and again:
                found.grows.append(node.lineno)
                found.tested |= method == "setdefault"
            found.shrinks |= method in _SHRINK
            found.detached |= method in ("detach", "detach_")
        if method == "get" and _named(owner, name):
            found.tested = True


def _assignment(
    node: ast.Assign | ast.AnnAssign | ast.AugAssign,
    name: str,
    looped: bool,
    again: bool,
    found: Habits,
) -> None:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    flat = [t for target in targets for t in _flat(target)]
    itself = any(_named(t, name) for t in flat)
    item = any(isinstance(t, ast.Subscript) and _named(_base(t), name) for t in flat)
    if not again or not (itself or item):
        return
    if itself and not isinstance(node.value, ast.Constant):
        # Those in loops come first: what stands before a loop only begins it.
        place = sum(1 for line in found.assigned if line < 0) if looped else len(found.assigned)
        found.assigned.insert(place, -node.lineno if looped else node.lineno)
    sliced = isinstance(node, ast.Assign) and any(
        isinstance(t, ast.Subscript) and isinstance(t.slice, ast.Slice) for t in flat
    )
    if item and sliced:
        found.shrinks = True
    elif item or isinstance(node, ast.AugAssign) or _inside(node.value, name):
        found.grows.append(node.lineno)
        value = node.value
        # x = x[-100:] keeps it small
        if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice):
            found.shrinks = True
    elif looped or any(isinstance(t, ast.Attribute) for t in flat):
        # A variable that gets its first value at the beginning of a function is only born there.
        found.shrinks = True
    found.detached |= node.value is not None and _inside(node.value, "detach")


def _flat(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _flat(part)
    else:
        yield target.value if isinstance(target, ast.Starred) else target


def _test(test: ast.expr, name: str, found: Habits) -> None:
    for part in ast.walk(test):
        if isinstance(part, ast.Compare) and any(
            isinstance(op, ast.In | ast.NotIn) for op in part.ops
        ):
            found.tested |= any(_inside(c, name) for c in part.comparators)


def _caps(node: ast.If, name: str) -> bool:
    """Whether it depends on the length of a name that it grows, or on a sum of what is in it."""
    compared = node.test
    if _grows_in(node.body, name) and _within_budget(node):
        return True
    if not isinstance(compared, ast.Compare) or len(compared.ops) != 1:
        return False
    sides = [compared.left, compared.comparators[0]]
    lengths = [
        isinstance(s, ast.Call) and _named(s.func, "len") and _inside(s, name) for s in sides
    ]
    if not any(lengths):
        return False
    shorter = isinstance(compared.ops[0], ast.Lt | ast.LtE) == lengths[0]
    if not shorter and isinstance(node.body[-1], ast.Return | ast.Continue | ast.Break | ast.Raise):
        return True  # when it is long enough, what follows is left out
    return _grows_in(node.body if shorter else node.orelse, name)


def _grows_in(body: list[ast.stmt], name: str) -> bool:
    """Whether one of these statements puts something into a name."""
    for part in (part for statement in body for part in ast.walk(statement)):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            grown = part.func.attr in _GROW and _named(_base(part.func.value), name)
        else:
            targets = part.targets if isinstance(part, ast.Assign) else []
            grown = any(isinstance(t, ast.Subscript) and _named(_base(t), name) for t in targets)
        if grown:
            return True
    return False


def _within_budget(node: ast.If) -> bool:
    """Whether what is compared with a limit is counted up when something is put in."""
    compared = node.test
    if not isinstance(compared, ast.Compare) or not isinstance(
        compared.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE
    ):
        return False
    counted = [s.target for s in node.body if isinstance(s, ast.AugAssign)]
    names = [getattr(t, "attr", getattr(t, "id", "")) for t in counted]
    return any(_inside(compared, name) for name in names if name)


def _consumed(tree: ast.Module, name: str) -> bool:
    names, calls = {name}, [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    assigns = [n for n in ast.walk(tree) if isinstance(n, ast.Assign | ast.AugAssign)]
    for _ in range(3):
        for node in assigns:
            if any(_inside(node.value, known) for known in names):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {t.id for t in targets if isinstance(t, ast.Name)}
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "backward"
        and any(_inside(part, known) for known in names for part in (call.func.value, *call.args))
        for call in calls
    )


@lru_cache(maxsize=256)
def in_loop(file: str, line: int) -> bool:
    """Whether a line stands in a loop of its function or file."""
    found = False
    for node, looped, _ in _statements(_tree(file)):
        if node.lineno <= line <= (node.end_lineno or node.lineno):
            found = looped or isinstance(node, ast.For | ast.While)
    return found


def registers(file: str) -> list[int]:
    """The lines of a file that register hooks or parametrizations."""
    lines = enumerate(linecache.getlines(file), 1)
    return [number for number, text in lines if REGISTERS.search(text)]


def function_at(file: str, line: int) -> str:
    """The innermost function around a line; empty at the top of a file."""
    found = ""
    for node, _, function in _statements(_tree(file)):
        if node.lineno <= line <= (node.end_lineno or node.lineno):
            found = function.rpartition(".")[2]
    return found


def draws_more(file: str, line: int) -> int:
    """The line that adds to a picture which the statement at ``line`` draws; 0 where it is cleared.

    Only what stands in the same function, or at the top of the file, is looked at.
    """
    if not _DRAWS.search(linecache.getline(file, line)):
        return 0
    function = function_at(file, line)
    simple = [node for node, _, _ in _statements(_tree(file)) if not hasattr(node, "body")]
    inside = [node.lineno for node in simple if function_at(file, node.lineno) == function]
    texts = {number: linecache.getline(file, number) for number in inside}
    if any(_CLEARS.search(text) for text in texts.values()):
        return 0
    return next((n for n, text in texts.items() if n < line and _ADDS.search(text)), 0)


def refers_to_itself(file: str, line: int, name: str) -> bool:
    """Whether the statement at a line makes a value out of its former self."""
    for node, _, _ in _statements(_tree(file)):
        if hasattr(node, "body") or not node.lineno <= line <= (node.end_lineno or node.lineno):
            continue
        if isinstance(node, ast.AugAssign):
            return _named(_base(node.target), name)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            return _inside(node.value, name)
        if isinstance(node, ast.Expr):  # buffer.extend(...) changes it in place
            return _inside(node.value, name)
    return False


def fed_to(file: str, line: int, name: str) -> list[str]:
    """What the statement at a line calls with or on the former value to get the new one, dotted."""
    for node, _, _ in _statements(_tree(file)):
        if isinstance(node, ast.Assign) and node.lineno <= line <= (node.end_lineno or node.lineno):
            calls = [part for part in ast.walk(node.value) if isinstance(part, ast.Call)]
            given = [c for c in calls if any(_inside(a, name) for a in (c.func, *_arguments(c)))]
            return [ast.unparse(call.func) for call in given]
    return []


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]
