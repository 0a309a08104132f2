"""A user's statement: parsed to find its parts, edited by position to keep its author's style.

>>> code = Statement.parse("loss = -torch.log(p).mean()  # nats")
>>> call = next(n for n in code.nodes if isinstance(n, ast.Call) and n.args)
>>> code.edited(code.append(call.args[0], ".clamp_min(1e-12)"))
'loss = -torch.log(p.clamp_min(1e-12)).mean()  # nats'
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from .files import parsed

_BLANK = b" \t\r\n\f\\"
# Longer than what people write; a table of data in one statement is not worth the time.
_LONGEST = 10_000
ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
"""Expressions that a method can be called on without parentheses around them."""


class Edit(NamedTuple):
    """Bytes ``start`` to ``stop`` of the statement become ``text``."""

    start: int
    stop: int
    text: str


@dataclass(frozen=True, eq=False)
class Statement:
    """One statement (or the header of a block) and the lines around it."""

    code: str
    tree: ast.Module
    body: str = ""
    """What makes the header of a block a whole statement."""
    around: str = ""

    @classmethod
    def parse(cls, code: str, around: str = "") -> Statement | None:
        """Parse it; None for half a statement, which cannot be changed with confidence."""
        for body in ("", " pass") if len(code) <= _LONGEST else ():
            tree = parsed(code + body)
            if tree is not None:
                return cls(code, tree, body, around)
        return None

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node in the order of the source."""
        # Not recursive: a sum of a thousand terms is a tree a thousand deep.
        found: list[ast.AST] = []
        waiting: list[ast.AST] = [self.tree]
        while waiting:
            node = waiting.pop()
            # Positions inside f-strings are wrong before Python 3.12.
            if not isinstance(node, ast.JoinedStr):
                found.append(node)
                waiting += reversed(list(ast.iter_child_nodes(node)))
        return tuple(found)

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node around each node."""
        return {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, innermost first."""
        while (above := self.parents.get(node)) is not None:
            yield above
            node = above

    def text(self, node: ast.AST) -> str:
        """The source of a node, without parentheses around it."""
        start, stop = self.span(node)
        return self._bytes[start:stop].decode()

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where a node stands, in bytes."""
        assert isinstance(node, ast.expr | ast.stmt | ast.keyword | ast.arg)
        last, end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self._starts[node.lineno] + node.col_offset, self._starts[last] + end

    def outer(self, node: ast.AST) -> tuple[int, int]:
        """Where a node stands with the parentheses that are its own, not those of a call."""
        start, stop = self.span(node)
        above = self.parents.get(node)
        floor = 0
        if isinstance(above, ast.Call) and node is not above.func:
            floor = self._bytes.index(b"(", self.span(above.func)[1]) + 1
        while True:
            left = len(self._bytes[:start].rstrip(_BLANK))
            right = len(self._bytes) - len(self._bytes[stop:].lstrip(_BLANK))
            opened = left > floor and self._bytes[left - 1 : left] == b"("
            if not opened or self._bytes[right : right + 1] != b")":
                return start, stop
            start, stop = left - 1, right + 1

    def append(self, node: ast.AST, suffix: str) -> list[Edit]:
        """Call a method on a node: ``x`` becomes ``x.suffix()``, ``a - b`` ``(a - b).suffix()``."""
        start, stop = self.outer(node)
        if isinstance(node, ATOMS) or (start, stop) != self.span(node):
            return [Edit(stop, stop, suffix)]
        return [Edit(start, start, "("), Edit(stop, stop, f"){suffix}")]

    def add(self, node: ast.AST, term: str) -> list[Edit]:
        """Add a term to a node: ``x`` becomes ``x + term``, in parentheses where it needs them."""
        start, stop = self.span(node)
        above = self.parents.get(node)
        argument = isinstance(above, ast.keyword) or (
            isinstance(above, ast.Call) and node is not above.func
        )
        if not isinstance(node, (*ATOMS, ast.BinOp, ast.UnaryOp, ast.Constant)):
            return [Edit(start, start, "(("), Edit(stop, stop, f") + {term})")]
        if argument or self.outer(node) != (start, stop):
            return [Edit(stop, stop, f" + {term}")]
        return [Edit(start, start, "("), Edit(stop, stop, f" + {term})")]

    def replace(self, node: ast.AST, text: str) -> list[Edit]:
        """Put something else in the place of a node."""
        return [Edit(*self.span(node), text)]

    def edited(self, edits: Iterable[Edit]) -> str:
        """The statement with these changes; empty when they clash or the result does not parse."""
        ordered = sorted(edits, key=_position)
        if not ordered or any(a.stop > b.start for a, b in pairwise(ordered)):
            return ""
        code = self.between(0, len(self._bytes), ordered)
        return code if code != self.code and parsed(code + self.body) is not None else ""

    def between(self, start: int, stop: int, edits: Iterable[Edit]) -> str:
        """A stretch of the source with the changes that fall into it."""
        parts, at = list[bytes](), start
        for edit in sorted(edits, key=_position):
            parts += [self._bytes[at : edit.start], edit.text.encode()]
            at = edit.stop
        return b"".join([*parts, self._bytes[at:stop]]).decode()

    def quoted(self, node: ast.AST, edits: Iterable[Edit]) -> str:
        """A node as it reads after these changes, on one line; empty when that is too long."""
        start, stop = self.span(node)
        inside = [e for e in edits if start <= e.start and e.stop <= stop]
        text = " ".join(self.between(start, stop, inside).split())
        return text if len(text) <= 80 and "#" not in text else ""

    @cached_property
    def torch(self) -> str:
        """The name under which torch is known here; empty when no line shows it."""
        found = re.search(r"(?<![\w.])(torch|th)\.\w", f"{self.code}\n{self.around}")
        return found[1] if found else ""

    @cached_property
    def _bytes(self) -> bytes:
        return self.code.encode()

    @cached_property
    def _starts(self) -> list[int]:
        """Byte at which each line begins; lines count from 1."""
        starts = [0, 0]
        for line in self._bytes.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        return starts


def _position(edit: Edit) -> tuple[int, int]:
    # Insertions at one place stay in the order in which they were asked for.
    return edit.start, edit.stop
