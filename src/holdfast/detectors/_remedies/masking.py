"""Masks that do harm: rows of -inf, 0 * inf, no target left, results masked too late."""

from __future__ import annotations

import ast

from ...records.nonfinite import Cause, TensorStats
from ...source.edits import Edit, Statement
from .cause import incoming, input_of, is_integral, name_of, statement_of
from .changes import guard_all
from .prescription import Remedy, StatementEdit, amount, only, places, prescribe
from .sites import called, simple

_COMPARISONS = {"eq", "ne", "gt", "ge", "lt", "le", "isfinite", "isnan", "abs", "bool"}
_MINUS_INFINITY = {
    "float('-inf')", "-float('inf')", "-torch.inf", "-math.inf", "-np.inf", "-inf",
}  # fmt: skip
# Low enough to be masked, and finite in every format.
_LOWEST = "-6e4"


def softmax(cause: Cause) -> Remedy | None:
    """A row of which everything is masked with -inf."""
    scores, output = input_of(cause, 0) or TensorStats(), cause.output or TensorStats()
    # One +inf spoils its whole row; a row that is all -inf is no longer than its infinities.
    if cause.backward or (cause.inputs and not scores.inf) or output.nan > scores.inf > 0:
        return None
    what = "its softmax is 0 / 0" if "softmax" in name_of(cause) else "its logsumexp is -inf"
    return prescribe(
        cause,
        f"{name_of(cause)} over a row that is all -inf",
        f"every entry of a row is masked with -inf, and {what} (nan_to_num after it leaves the "
        "gradient NaN where the mask was added): mask with a low finite number",
        0.9 if cause.inputs else 0.5,
        _finite_mask(cause)
        or guard_all(
            cause, lambda code, site: code.append(site.operands[0], f".clamp_min({_LOWEST})")
        ),
    )


def _finite_mask(cause: Cause) -> StatementEdit | None:
    """Exchange the one -inf that is written in the same statement."""
    code = statement_of(cause)
    infinities = [n for n in code.nodes if _minus_infinity(code, n)] if code else []
    if code is None or len(infinities) != 1:
        return None
    node = code.parents.get(infinities[0], infinities[0])
    return StatementEdit(tuple(code.replace(infinities[0], _LOWEST)), node)


def _minus_infinity(code: Statement, node: ast.AST) -> bool:
    text = code.text(node).replace(" ", "").replace('"', "'") if isinstance(node, ast.expr) else ""
    return text in _MINUS_INFINITY


def product(cause: Cause) -> Remedy | None:
    """A mask by multiplication with an infinity that is written in the statement."""
    change = None if cause.backward else _finite_mask(cause)
    if change is None or not any(stat.zeros for stat in cause.inputs):
        return None
    text = "0 times the infinity that is written here is NaN, not 0: use a finite number"
    return prescribe(cause, "0 * inf", text, 0.95, change)


def masked(cause: Cause) -> Remedy | None:
    """An infinity that a mask wrote has come through to the loss."""
    output = cause.output or TensorStats()
    if cause.backward or output.nan or not output.inf or any(stat.bad for stat in cause.inputs):
        return None
    return prescribe(
        cause,
        "an infinity from a mask reaches the loss",
        "the loss needs a value that is masked with an infinity here (the target itself, or a row "
        f"as a whole): look at the mask, or fill in a low finite number ({_LOWEST})",
        0.7,
    )


def rows_left_out_too_late(cause: Cause) -> Remedy | None:
    """Rows of NaN that the loss ignores: their gradient is 0, and 0 * NaN is NaN."""
    holds = next((stat for stat in cause.inputs[:-1] if stat.nan), None)
    if not cause.backward or holds is None or incoming(cause).bad:
        return None
    return prescribe(
        cause,
        f"0 * NaN in the gradient of {name_of(cause)}'s weights",
        f"{amount(holds.nan, holds.numel, 'the value is', 'values are')} NaN in what this layer "
        "reads; the loss ignores their rows, but a gradient of 0 times NaN is NaN: replace them "
        "before the model sees them, or select the rows before it and not after",
        0.9,
        _without_nan(cause),
    )


def _without_nan(cause: Cause) -> StatementEdit | None:
    """Clean the argument of the one call of the statement that has a single plain one."""
    code = statement_of(cause)
    calls = [n for n in code.nodes if isinstance(n, ast.Call)] if code and code.torch else []
    match calls:
        case [ast.Call(args=[ast.Name() as given], keywords=[]) as call] if code:
            cleaned = f"{code.torch}.nan_to_num({given.id})"
            return StatementEdit(tuple(code.replace(given, cleaned)), call)
        case _:
            return None


def cross_entropy(cause: Cause) -> Remedy | None:
    """cross_entropy and nll_loss with nothing to take the mean over, or with bad weights."""
    if (
        cause.backward
        or not (cause.output or TensorStats()).bad
        or (input_of(cause, 0) or TensorStats()).bad
    ):
        return None
    weights = [stat for stat in cause.inputs[2:] if not is_integral(stat)]
    if any(weight.bad or weight.zeros for weight in weights):
        text = (
            "weights are infinite, or those of all targets are 0: a class that does not occur has "
            "no 1 / count; compute them with counts.clamp_min(1)"
        )
        return prescribe(cause, "bad weights in cross entropy", text, 0.7)
    return prescribe(
        cause,
        "cross entropy in which every target is ignored",
        "the mean over 0 targets is 0 / 0: divide the sum by the number of targets that count, at "
        "least 1, or skip such a batch",
        0.95 if cause.inputs else 0.5,
        _counted(cause),
    )


def _counted(cause: Cause) -> StatementEdit | None:
    """The sum of the losses over the number of targets that are not ignored."""
    code, site = statement_of(cause), only(places(cause))
    if code is None or site is None or not isinstance(site.node, ast.Call) or site.method:
        return None
    if len(site.operands) != 2 or not site.keywords <= {"ignore_index"}:
        return None
    target, ignore = site.operands[1], site.keyword("ignore_index")
    # A target that is only seen in another shape may be written twice.
    shown = target
    if isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
        shown = target.func.value if target.func.attr in ("view", "reshape", "flatten") else target
    if not simple(shown):
        return None
    nothing = code.text(ignore) if ignore else "-100"
    call = code.text(site.node).removesuffix(")").rstrip(", \n")
    new = f'{call}, reduction="sum") / ({code.text(target)} != {nothing}).sum().clamp_min(1)'
    alone = isinstance(code.parents.get(site.node), ast.Assign | ast.Return | ast.AugAssign)
    return StatementEdit(tuple(code.replace(site.node, new if alone else f"({new})")), site.node)


def behind_mask(cause: Cause, headline: str, safe: str = "1", operand: int = 0) -> Remedy | None:
    """The trap of ``where(m, f(x), 0)``: it differentiates ``f`` at masked values too.

    Args:
        cause: a bad gradient.
        headline: the fault without the mask.
        safe: an argument at which the function and its derivative are finite.
        operand: which argument of the function is made safe.
    """
    code, site = statement_of(cause), only(places(cause))
    if code is None or site is None or (site.inplace and operand == 0):
        return None
    branch: ast.AST = site.node
    for above in code.ancestors(site.node):
        mask = _mask(code, above, branch)
        if mask:
            edits = _made_safe(code, site.operands[operand], safe, *mask)
            text = (
                "torch.where and masked_fill still differentiate masked values, and 0 * inf is "
                "NaN: make the argument safe before the function, not the result after it"
            )
            change = StatementEdit(tuple(edits), site.node)
            return prescribe(cause, f"{headline} behind a mask", text, 0.95, change)
        # Through other functions the shape, and with it the mask, may be another.
        if not isinstance(above, ast.BinOp | ast.UnaryOp):
            return None
        branch = above
    return None


def _mask(code: Statement, node: ast.AST, branch: ast.AST) -> tuple[ast.expr, bool] | None:
    """The condition that ``node`` puts on ``branch``, and whether it picks the branch."""
    if isinstance(node, ast.Attribute):
        node = code.parents.get(node, node)  # branch.where(...), branch.masked_fill(...)
    where, fill = called(node, "where"), called(node, "masked_fill")
    if where and len(where.operands) == 3:
        condition, result, other = where.operands
        if where.method:
            condition, result = result, condition
        return (condition, branch is result) if branch in (result, other) else None
    if fill and fill.method and fill.operands[0] is branch and len(fill.operands) == 3:
        return fill.operands[1], False
    return None


def _made_safe(
    code: Statement, argument: ast.expr, safe: str, condition: ast.expr, used: bool
) -> list[Edit]:
    if not code.torch or not _repeatable(condition):
        return []
    pair = (code.text(argument), safe) if used else (safe, code.text(argument))
    new = f"{code.torch}.where({code.text(condition)}, {pair[0]}, {pair[1]})"
    return [Edit(*code.outer(argument), new)]


def _repeatable(condition: ast.expr) -> bool:
    """Whether a condition may be computed twice: comparisons, nothing that acts or draws."""
    calls = [part for part in ast.walk(condition) if isinstance(part, ast.Call)]
    named = all(isinstance(c.func, ast.Attribute) and c.func.attr in _COMPARISONS for c in calls)
    return named and not any(isinstance(p, ast.NamedExpr) for p in ast.walk(condition))


RULES = {
    **dict.fromkeys(("softmax", "log_softmax", "logsumexp", "logcumsumexp"), softmax),
    **dict.fromkeys(("mm", "addmm", "bmm"), rows_left_out_too_late),
    "mul": product,
    "masked_fill": masked,
    "nll_loss": cross_entropy,
}
