"""Conditions of the source that can be watched and switched off while it runs.

Each condition of the chosen modules (the test of an ``if``, each part of an ``and`` or ``or``, a
filter of a comprehension) is wrapped in a call when the module is imported. The call notes which
values the condition took, and one condition at a time can be forced to stay true or false.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_CALL = "_holdfast_condition"


@dataclass(frozen=True, slots=True)
class Condition:
    """A place in the source that decides something."""

    module: str
    line: int
    text: str


@dataclass(slots=True)
class Conditions:
    """All conditions of the watched modules, and the values they took."""

    known: list[Condition] = field(default_factory=list[Condition])
    values: dict[int, set[bool]] = field(default_factory=dict[int, set[bool]])
    """Since it was last cleared, by the number of the condition."""
    forced: tuple[int, bool] | None = None
    """The condition that is switched off, and the value it has instead."""

    def seen(self, number: int, value: Any) -> Any:
        """What the wrapped condition is: its own value, or the forced one."""
        if self.forced is not None and number == self.forced[0]:
            return self.forced[1]
        self.values.setdefault(number, set()).add(bool(value))
        return value


def watch(packages: Sequence[str]) -> Conditions:
    """Watch the modules of these packages that are imported from now on."""
    conditions = Conditions()
    sys.meta_path.insert(0, _Finder(tuple(packages), conditions))
    return conditions


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, packages: tuple[str, ...], conditions: Conditions) -> None:
        self._packages, self._conditions = packages, conditions

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not any(fullname == p or fullname.startswith(f"{p}.") for p in self._packages):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        spec.loader = _Loader(fullname, spec.origin, self._conditions)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, conditions: Conditions) -> None:
        super().__init__(name, path)
        self._conditions = conditions

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text(encoding="utf-8")
        tree = _Wrapper(source, fullname, self._conditions).visit(ast.parse(source))
        return compile(ast.fix_missing_locations(tree), self.path, "exec")

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__[_CALL] = self._conditions.seen
        super().exec_module(module)


class _Wrapper(ast.NodeTransformer):
    """Wraps conditions within functions; what is said about types is left alone."""

    def __init__(self, source: str, module: str, conditions: Conditions) -> None:
        self._source, self._module, self._conditions = source, module, conditions
        self._returns_bool = [False]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """A function that returns a bool returns a condition."""
        said = ast.unparse(node.returns) if node.returns is not None else ""
        self._returns_bool.append(said == "bool")
        node.body = [self.visit(statement) for statement in node.body]
        self._returns_bool.pop()
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        """What a function returns."""
        if node.value is not None and self._returns_bool[-1]:
            node.value = self._wrapped(node.value)
        else:
            self.generic_visit(node)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        """A branch."""
        return self._tested(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """A branch within an expression."""
        return self._tested(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        """A loop never ends when its condition is forced: it is left alone."""
        return self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        """The filters of a comprehension."""
        node.iter = self.visit(node.iter)
        node.ifs = [self._wrapped(test) for test in node.ifs]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Parts of an ``and``; an ``or`` outside a condition mostly says what is used instead."""
        if isinstance(node.op, ast.And):
            return self._wrapped(node)
        return self.generic_visit(node)

    def _tested(self, node: Any) -> ast.AST:
        test = node.test
        node.test = ast.Constant(True)
        self.generic_visit(node)
        node.test = self._wrapped(test)
        return node

    def _wrapped(self, test: ast.expr) -> ast.expr:
        if isinstance(test, ast.BoolOp):
            test.values = [self._wrapped(value) for value in test.values]
            return test
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test.operand = self._wrapped(test.operand)
            return test
        if isinstance(test, ast.Constant):
            return test
        text = " ".join((ast.get_source_segment(self._source, test) or "").split())
        number = len(self._conditions.known)
        self._conditions.known.append(Condition(self._module, test.lineno, text))
        inner: ast.expr = self.visit(test)
        call = ast.Call(ast.Name(_CALL, ast.Load()), [ast.Constant(number), inner], [])
        return ast.copy_location(call, test)
