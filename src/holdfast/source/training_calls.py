"""Which functions and lines of the user's code lead to a backward pass, read from the source.

A change of a function that training calls changes the training: advice about an evaluation asks
here first. Names are compared and not values, so more is taken for training than is; never less
within the files that are read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from functools import lru_cache

from .files import nodes_of
from .statements import FoundStatement, statements
from .syntax import FUNCTIONS, expressions_of, targets_of

_STORES = ("append", "extend", "add", "insert", "update")
# What calling a module runs, however it is called.
_CALLED = frozenset({"forward", "__call__"})
# Every module has these; functions of the script have such names, too.
_OF_MODULES = ("train", "eval")


@dataclass(frozen=True)
class TrainingCalls:
    """What the source says about training."""

    known: bool = False
    """Whether a backward pass was found: without one nothing is known of what it needs."""
    used: Set[str] = frozenset()
    """Functions that make what a backward pass goes through, themselves or through others."""
    trains: Set[str] = frozenset()
    """Functions that call a backward pass, themselves or through others."""
    lines: Set[tuple[str, int]] = frozenset()
    """File and first line of the statements that make what a backward pass goes through."""
    handed: Set[tuple[str, int]] = frozenset()
    """The same of what is handed to a function that trains: perhaps it goes through that."""
    inputs: Set[str] = frozenset()
    """Names that the script asks ``autograd.grad`` for the gradients of, or reads ``.grad`` of."""

    def reached_by(self, node: ast.stmt) -> bool:
        """Whether a statement, with all that stands inside of it, leads to a backward pass."""
        parts = [part for part in ast.walk(node) if isinstance(part, ast.stmt)]
        return any(_differentiated(part, self.trains) for part in parts)


@dataclass
class _Scope:
    """The statements of one function, or of a file outside of all."""

    file: str
    name: str
    statements: list[FoundStatement] = field(default_factory=list[FoundStatement])
    named: set[str] = field(default_factory=set[str])
    makers: dict[str, list[FoundStatement]] = field(default_factory=dict[str, list[FoundStatement]])
    """By name the statements that give it a value."""


@lru_cache(maxsize=8)
def training_in(files: tuple[str, ...]) -> TrainingCalls:
    """Read these files."""
    scopes = [scope for file in files for scope in _scopes(file)]
    by_name: dict[str, list[_Scope]] = {}
    for scope in scopes:
        by_name.setdefault(scope.name, []).append(scope)
    trains: set[str] = set()
    while True:
        feeding = [(scope, _feeding(scope, trains)) for scope in scopes]
        found = {scope.name for scope, statements in feeding if statements and scope.name}
        if found <= trains:
            break
        trains |= found
    lines = _lines((scope, _feeding(scope, frozenset())) for scope in scopes)
    named = {n for _, nodes in feeding for node in nodes for n in _named(expressions_of(node))}
    # A function that trains is none that a loss is made by: of what it calls its own lines tell.
    others = by_name.keys() - trains
    used = (named | _CALLED if lines else set[str]()) & others
    while new := {n for u in used for s in by_name[u] for n in s.named & others} - used:
        used |= new
    inputs = {n for scope in scopes for each in scope.statements for n in _inputs(each.node)}
    return TrainingCalls(bool(lines), used, trains, lines, _lines(feeding) - lines, inputs)


def _lines(feeding: Iterable[tuple[_Scope, list[ast.stmt]]]) -> set[tuple[str, int]]:
    return {(scope.file, node.lineno) for scope, nodes in feeding for node in nodes}


@lru_cache(maxsize=64)
def _scopes(file: str) -> list[_Scope]:
    classes = (node for node in nodes_of(file) if isinstance(node, ast.ClassDef))
    methods = {id(node) for one in classes for node in one.body}
    found = {0: _Scope(file, "")}
    for each in statements(file):
        node = each.node
        if isinstance(node, FUNCTIONS):
            dotted = id(node) in methods and node.name in _OF_MODULES
            found[id(node)] = _Scope(file, f".{node.name}" if dotted else node.name)
            continue
        scope = found[id(each.functions[-1]) if each.functions else 0]
        scope.statements.append(each)
        scope.named.update(_named(expressions_of(node)))
        for name in _given(node):
            scope.makers.setdefault(name, []).append(each)
    return list(found.values())


def _feeding(scope: _Scope, trains: Set[str]) -> list[ast.stmt]:
    """Backward passes of a scope, and the statements whose values they go through."""
    found: dict[int, ast.stmt] = {}
    seen: set[tuple[str, int]] = set()
    waiting: list[tuple[str, FoundStatement]] = []
    for within in scope.statements:
        if names := _differentiated(within.node, trains):
            found[id(within.node)] = within.node
            waiting += [(name, within) for name in names]
    while waiting:
        name, user = waiting.pop()
        if (name, id(user.node)) in seen:
            continue
        seen.add((name, id(user.node)))
        for maker in _makers(scope.makers.get(name, []), user):
            found[id(maker.node)] = maker.node
            waiting += [(needed, maker) for needed in _needed(maker.node)]
    return list(found.values())


def _makers(makers: list[FoundStatement], user: FoundStatement) -> list[FoundStatement]:
    """Those of the statements that may have given a name the value that is used."""
    for loop in reversed(user.loops):
        # Where each turn gives it a value before it is used, none from outside of the loop counts.
        body: list[ast.stmt] = [loop, *getattr(loop, "body", ())]
        if any(each.node in body and each.node.lineno < user.node.lineno for each in makers):
            return [each for each in makers if each.node is loop or loop in each.loops]
    return makers


def _differentiated(node: ast.stmt, trains: Set[str]) -> list[str]:
    """Names in what a statement calls a backward pass on, or gives to a function that calls one."""
    found: list[str] = []
    for part in (p for expression in expressions_of(node) for p in ast.walk(expression)):
        if isinstance(part, ast.Call):
            word = next(_named([part.func]), "")
            grad = word == "grad" and "autograd" in ast.unparse(part.func)
            if word == "backward" or grad or word in trains:
                found += [word, *_named([part])]
        elif isinstance(part, ast.Name | ast.Attribute) and next(_named([part]), "") in trains:
            found += _named([part])  # handed on, as a closure is
    return found


def _inputs(node: ast.stmt) -> set[str]:
    """Names that gradients are asked for."""
    found: set[str] = set()
    for part in (p for expression in expressions_of(node) for p in ast.walk(expression)):
        if isinstance(part, ast.Call) and ast.unparse(part.func).endswith("autograd.grad"):
            asked = [*part.args[1:2], *(k.value for k in part.keywords if k.arg == "inputs")]
            found |= set(_named(asked))
        elif isinstance(part, ast.Attribute) and part.attr in ("grad", "retain_grad"):
            found |= {next(_named([part.value]), "")}
    return found - {"autograd"}


def _given(node: ast.stmt) -> set[str]:
    """The names that a statement gives a value, or puts one into."""
    targets = targets_of(node)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        func = node.value.func
        if isinstance(func, ast.Attribute) and func.attr in _STORES:
            targets = [func.value]
    walrus = (p for e in expressions_of(node) for p in ast.walk(e) if isinstance(p, ast.NamedExpr))
    return {name for target in targets for name in _stored(target)} | {w.target.id for w in walrus}


def _stored(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _stored(part)
    elif isinstance(target, ast.Subscript | ast.Starred):
        yield from _stored(target.value)
    elif isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Attribute):
        yield target.attr


def _needed(node: ast.stmt) -> set[str]:
    """The names that a statement reads to give others their value."""
    parts = expressions_of(node)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        # ``x[i] = y`` keeps what the rest of x was made of.
        parts = [part for part in parts if part is node.value or isinstance(part, ast.Subscript)]
    elif isinstance(node, ast.For | ast.AsyncFor):
        parts = [node.iter]
    elif isinstance(node, ast.With | ast.AsyncWith):
        parts = [item.context_expr for item in node.items]
    return set(_named(parts))


def _named(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names and attributes, the outermost first."""
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                yield part.id
            elif isinstance(part, ast.Attribute):
                yield f".{part.attr}" if part.attr in _OF_MODULES else part.attr
