"""Where in a statement an operation stands: as a function, a method or an operator.

>>> code = Statement.parse("d = ((a - b) ** 2).sum(-1).sqrt() / torch.sqrt(n)")
>>> [code.text(site.operands[0]) for site in sites(code, "sqrt")]
['((a - b) ** 2).sum(-1)', 'n']
>>> [code.text(site.operands[1]) for site in sites(code, "div")]
['torch.sqrt(n)']
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...source.edits import Statement
from ...source.syntax import first_name, holds

# Names under which a function of torch is called; everything else before the dot is a tensor.
_MODULES = {"torch", "th", "F", "nn", "functional", "special", "linalg"}
# The same names elsewhere: math.log takes no tensor, numpy's is not recorded.
_FOREIGN = {"math", "cmath", "np", "numpy", "jnp", "jax", "tf", "scipy", "random", "logging"}

_SPELLINGS = {
    "acos": ("acos", "arccos"), "asin": ("asin", "arcsin"), "atanh": ("atanh", "arctanh"),
    "div": ("div", "divide", "true_divide"), "mul": ("mul", "multiply"), "pow": ("pow", "square"),
    "norm": ("norm", "vector_norm"), "mm": ("mm", "bmm", "matmul"),
    "nll_loss": ("cross_entropy", "nll_loss"),
}  # fmt: skip
_OPERATORS: dict[str, type[ast.operator]] = {
    "div": ast.Div, "reciprocal": ast.Div, "mul": ast.Mult, "pow": ast.Pow, "mm": ast.MatMult,
}  # fmt: skip
# Methods that leave the values of a tensor as they are.
_VIEWS = {
    "float", "double", "item", "detach", "to", "unsqueeze", "squeeze", "view", "reshape", "expand",
    "expand_as", "transpose",
}  # fmt: skip
# Methods that take no argument: with one, `x.log(...)` is somebody's logger.
_UNARY = {
    "log", "log2", "log10", "exp", "exp2", "expm1", "sqrt", "rsqrt", "reciprocal", "acos",
    "asin", "atanh", "erfinv", "cosh", "sinh", "square",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Site:
    """One place: the whole expression and its operands, a method's own object first."""

    node: ast.Call | ast.BinOp | ast.AugAssign
    operands: tuple[ast.expr, ...]
    method: bool = False
    """Written as a method of its first operand."""

    @property
    def inplace(self) -> bool:
        """Whether it changes its first operand, which then must stay what it is."""
        if isinstance(self.node, ast.Call):
            return isinstance(self.node.func, ast.Attribute) and self.node.func.attr.endswith("_")
        return isinstance(self.node, ast.AugAssign)

    def keyword(self, name: str) -> ast.expr | None:
        """The value of a keyword argument."""
        keywords = self.node.keywords if isinstance(self.node, ast.Call) else ()
        return next((k.value for k in keywords if k.arg == name), None)

    @property
    def plain(self) -> bool:
        """Whether it is surely torch: ``torch.log(x)``, ``x.log()``; ``log(x)`` may be math's."""
        return isinstance(self.node, ast.Call) and isinstance(self.node.func, ast.Attribute)

    @property
    def keywords(self) -> set[str | None]:
        """The names of its keyword arguments."""
        return {k.arg for k in self.node.keywords} if isinstance(self.node, ast.Call) else set()


def sites(code: Statement, name: str, line: int = 0) -> list[Site]:
    """All places where an operation is written; only those on a line when some are there.

    Args:
        code: the statement.
        name: the operation: "log", "div".
        line: line of the statement, from 1; 0 when unknown.
    """
    found = list(_all(code, name))
    return [site for site in found if line and holds(site.node, line)] or found


def called(node: ast.AST, name: str) -> Site | None:
    """The node as a call of this function or method; None when it is something else."""
    return _call(node, _SPELLINGS.get(name, (name,))) if isinstance(node, ast.Call) else None


def constant(node: ast.AST | None) -> float | None:
    """The value of a number written out: ``2``, ``-0.5``, ``1 / 3``."""
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return float(value) if abs(value) < 1e300 else None
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = constant(operand)
            return None if inner is None else -inner
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            over, under = constant(left), constant(right)
            return over / under if over is not None and under else None
        case _:
            return None


def simple(node: ast.AST) -> bool:
    """Whether an expression may be written twice: names, attributes, items, nothing that acts."""
    allowed = (
        ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.expr_context, ast.Slice,
        ast.Tuple, ast.UnaryOp, ast.unaryop, ast.Compare, ast.cmpop,
    )  # fmt: skip
    return all(isinstance(part, allowed) for part in ast.walk(node))


def radicand(node: ast.expr) -> ast.expr | None:
    """What stands under the root when an expression is a root; None when it is not."""
    node = without_views(node)
    root = called(node, "sqrt")
    if root:
        return root.operands[0]
    match node:
        case ast.BinOp(left=base, op=ast.Pow(), right=right) if 0 < (constant(right) or 0.0) < 1:
            return base
        case _:
            return None


def without_views(node: ast.expr) -> ast.expr:
    """The expression without the methods behind it that leave its values as they are."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in _VIEWS:
            break
        node = node.func.value
    return node


def _all(code: Statement, name: str) -> Iterator[Site]:
    names = _SPELLINGS.get(name, (name,))
    operator = _OPERATORS.get(name)
    for node in code.nodes:
        if isinstance(node, ast.Call):
            site = _call(node, names)
            if site:
                yield site
        elif operator and isinstance(node, ast.BinOp) and isinstance(node.op, operator):
            yield Site(node, (node.left, node.right))
        elif operator and isinstance(node, ast.AugAssign) and isinstance(node.op, operator):
            yield Site(node, (node.target, node.value))


def _call(node: ast.Call, names: Sequence[str]) -> Site | None:
    positional = tuple(node.args)
    if any(isinstance(arg, ast.Starred) for arg in positional):
        return None
    first = positional[0] if positional else None
    logger = isinstance(first, ast.Constant) and isinstance(first.value, str)
    if isinstance(node.func, ast.Name):
        fits = node.func.id in names and positional and not logger
        return Site(node, positional) if fits else None
    if not isinstance(node.func, ast.Attribute):
        return None
    name, owner = node.func.attr.removesuffix("_"), node.func.value
    root = first_name(owner)
    if name not in names or root in _FOREIGN or logger:
        return None
    if root in _MODULES and not isinstance(owner, ast.Call):
        return Site(node, positional) if positional else None
    if (name in _UNARY and positional) or (isinstance(owner, ast.Name) and owner.id == "self"):
        return None
    return Site(node, (owner, *positional), method=True)
