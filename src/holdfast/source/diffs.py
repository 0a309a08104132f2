"""The recorded line of a finding, and a change of that line as a diff.

The lines around it come with the event: a finding is read where the script may not be.
"""

from __future__ import annotations

import ast
import difflib
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from .edits import ATOMS, Edit, Statement
from .files import parsed
from .syntax import is_named

_KEPT = ("function", "code", "start", "excerpt")
# Their arguments are stored one each.
_STORES = ("append", "appendleft", "add")


def unified(old: str, new: str, *, file: str, line: int, indent: str) -> str:
    """Both versions of a statement as a diff, with the indentation it has in its file."""
    lines = [f"@@ {file or '?'}:{line} @@"]
    before, after = old.split("\n"), new.split("\n")
    for tag, a, b, c, d in difflib.SequenceMatcher(None, before, after, False).get_opcodes():
        if tag == "equal":
            lines += [f" {indent}{text}" for text in before[a:b]]
        else:
            lines += [f"-{indent}{text}" for text in before[a:b]]
            lines += [f"+{indent}{text}" for text in after[c:d]]
    return "\n".join(lines)


def indent_of(code: str, first: int, excerpt: Iterable[tuple[object, object]]) -> str:
    """The indentation that a statement has in its file, read from the lines around it."""
    bare = code.split("\n", 1)[0].strip()
    for number, text in excerpt:
        line = str(text)
        if number == first and line.strip() == bare:
            return line[: len(line) - len(line.lstrip())]
    return ""


def source_in(data: Mapping[str, Any]) -> dict[str, Any]:
    """Statement, function and the lines around it, as reports show them; empty where unknown."""
    return {name: data[name] for name in _KEPT if data.get(name)} if data.get("code") else {}


def replaced(data: Mapping[str, Any], new: str) -> str:
    """The statement and its new form as a diff; empty where either is unknown."""
    code, file = _code(data), str(data.get("file") or "")
    if not new or not code or new == code or not file:
        return ""
    indent = indent_of(code, _first(data), _excerpt(data))
    return unified(code, new, file=file, line=_first(data), indent=indent)


def followed_by(data: Mapping[str, Any], added: str) -> str:
    """The statement and one more line behind it, as a diff."""
    code = _code(data)
    return replaced(data, f"{code}\n{added}") if code and added else ""


def decorated(data: Mapping[str, Any], decorator: str) -> str:
    """A decorator above the function, whose first line was recorded as ``head``, as a diff."""
    head, file = data.get("head"), str(data.get("file") or "")
    if not file or not isinstance(head, list | tuple) or len(cast("list[Any]", head)) != 2:
        return ""
    line, text = cast("list[Any]", head)
    if not isinstance(line, int) or not isinstance(text, str):
        return ""
    indent, bare = text[: len(text) - len(text.lstrip())], text.strip()
    return unified(bare, f"{decorator}\n{bare}", file=file, line=line, indent=indent)


def wrapped(data: Mapping[str, Any], head: str) -> str:
    """The statement inside of a ``with``, as a diff; empty where its lines cannot be moved in."""
    code = _code(data)
    tree = parsed(code)
    if tree is None or len(tree.body) != 1:
        return ""
    if hasattr(tree.body[0], "body") or '"""' in code or "'''" in code:
        return ""
    return replaced(data, f"{head}\n{textwrap.indent(code, '    ')}")


def detached(code: str, *, single: bool = True) -> str:
    """A statement that stores a tensor, storing it without its graph; empty where it is no such.

    ``single``: a tensor is stored under the name itself, not in a list that ``+=`` makes longer.

    >>> detached("losses.append(loss)"), detached("total += loss")
    ('losses.append(loss.detach())', 'total += loss.detach()')
    >>> detached("self.mean = 0.9 * self.mean + 0.1 * loss")
    'self.mean = (0.9 * self.mean + 0.1 * loss).detach()'
    """
    statement = Statement.parse(textwrap.dedent(code))
    if statement is None or len(statement.tree.body) != 1:
        return ""
    node, value = statement.tree.body[0], None
    if isinstance(node, ast.AugAssign):
        # It stays a tensor: what reads the sum later may ask it for its item.
        value = node.value if single or isinstance(node.target, ast.Subscript) else None
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        value = None if isinstance(node.targets[0], ast.Tuple | ast.List) else node.value
    elif isinstance(node, ast.Expr) and isinstance(call := node.value, ast.Call):
        stores = isinstance(call.func, ast.Attribute) and call.func.attr in _STORES
        value = call.args[0] if stores and len(call.args) == 1 and not call.keywords else None
    if not isinstance(value, (*ATOMS, ast.BinOp)):
        return ""
    start, stop = statement.span(value)
    if isinstance(value, ATOMS):
        return statement.edited([Edit(stop, stop, ".detach()")])
    return statement.edited([Edit(start, start, "("), Edit(stop, stop, ").detach()")])


def target_in(data: Mapping[str, Any]) -> str:
    """What the statement calls the value: ``self.h`` in a method, where the loop says ``net.h``."""
    name, path = str(data.get("name") or ""), str(data.get("path") or "").split("[")[0]
    stored = [n for n in _nodes(data) if isinstance(getattr(n, "ctx", None), ast.Store)]
    own = [ast.unparse(n) for n in stored if is_named(n, name)]
    return own[0] if own else path


def carried_together(data: Mapping[str, Any]) -> list[str]:
    """``h`` and ``c`` of ``y, (h, c) = lstm(x, (h, c))``: a pair that is handed on as it came."""
    name = str(data.get("path") or "")
    pairs = [n for n in _nodes(data) if isinstance(n, ast.Tuple)]
    given = {ast.unparse(n) for n in pairs if isinstance(n.ctx, ast.Load)}
    for pair in pairs:
        names = [ast.unparse(part) for part in pair.elts]
        if isinstance(pair.ctx, ast.Store) and ast.unparse(pair) in given and name in names:
            return names
    return []


def _nodes(data: Mapping[str, Any]) -> list[ast.AST]:
    """The recorded statement, node by node; none where it is half a statement."""
    tree = parsed(_code(data))
    return [] if tree is None else list(ast.walk(tree))


def _code(data: Mapping[str, Any]) -> str:
    return textwrap.dedent(str(data.get("code") or "")).strip("\n")


def _first(data: Mapping[str, Any]) -> int:
    """The line on which the statement begins."""
    first = data.get("start") or data.get("line")
    return first if isinstance(first, int) else 0


def _excerpt(data: Mapping[str, Any]) -> Iterator[tuple[object, object]]:
    found: object = data.get("excerpt")
    for pair in cast("list[object]", found) if isinstance(found, list) else ():
        if isinstance(pair, list | tuple) and len(cast("list[object]", pair)) == 2:
            number, text = cast("list[object]", pair)
            yield number, text
