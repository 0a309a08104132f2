"""Overflow: exp, fp16, and training that diverged."""

from __future__ import annotations

import ast
import math
import re

from .cause import (
    LIMITS,
    SHORT,
    Cause,
    Stat,
)
from .fusions import fusion
from .guards import Guard, guard_all
from .prescription import (
    Change,
    Remedy,
    figure,
    only,
    places,
    prescribe,
)
from .sites import Site, called, constant
from .source import Edit, Statement

# exp(80) = 5.5e34 leaves room for sums and products in fp32, exp(10) = 22026 in fp16.
_EXPONENTS = {"float16": "10.0", "float64": "700.0"}
# What is the logarithm of a spread or a rate becomes a factor, and is squared: exp(20) = 4.9e8.
_LOGARITHMS = re.compile(r"log_?(var|std|sigma|scale|rate|s\b)", re.IGNORECASE)
# Inputs above this are no activations of a healthy training; a guess.
_ABSURD = 1e12


def exponential(cause: Cause) -> Remedy | None:
    """Rule for exp and the like beyond the range of the format."""
    stat, name = cause.input(0) or Stat(), cause.name
    largest = stat.largest if name in ("cosh", "sinh") else stat.high
    if cause.backward:
        return overflow(cause)
    if stat.inf and not largest > 10:
        text = "its argument is already infinite: look at what overflowed before it"
        return prescribe(cause, f"{name} of inf", text, 0.5)
    peak = "" if math.isnan(largest) else f" (max {figure(largest)})"
    headline = f"{name} overflow{peak}"
    end = math.log2(cause.limit) if name == "exp2" else math.log(cause.limit)
    kind = SHORT.get(cause.dtype, "fp32")
    text = f"{kind} ends at {name}({end:.1f})"
    better = fusion(cause)
    if better:
        return prescribe(cause, headline, f"{text}, and {better[1]}", 0.95, better[0])
    change = guard_all(cause, _below(name, _EXPONENTS.get(cause.dtype, "80.0")))
    if largest > 10 * end:
        text += (
            "; a value that large comes from an unscaled input or a diverging model: look there too"
        )
    return prescribe(cause, headline, f"{text}: clamp the argument", 0.9, change)


def _below(name: str, bound: str) -> Guard:
    def guard(code: Statement, site: Site) -> list[Edit]:
        if name in ("cosh", "sinh"):
            return code.append(site.operands[0], f".clamp(-{bound}, {bound})")
        logarithm = bound != "10.0" and _LOGARITHMS.search(code.text(site.operands[0]))
        return code.append(site.operands[0], f".clamp_max({'20.0' if logarithm else bound})")

    return guard


def overflow(cause: Cause) -> Remedy | None:
    """Rule for finite inputs and an infinite result: an overflow of the format."""
    output = cause.output or Stat()
    given = (cause.incoming,) if cause.backward else cause.inputs
    if not output.bad or any(stat.bad for stat in given):
        return None
    if cause.backward:
        return _gradient_overflow(cause)
    if cause.half:
        peak = _peak(cause)
        known = peak > cause.limit
        beyond = f"max {figure(peak)} > 65,504" if known else f"in {cause.name}, beyond 65,504"
        text = (
            "compute it in fp32, under torch.autocast(device_type, enabled=False) with .float() on "
            "its inputs, or train in bf16, whose range ends at 3e38; a GradScaler does not help in "
            "forward"
        )
        change, moved = _scaled_before(cause), "scale before the product, not after it"
        if not change:
            change, moved = _in_float(cause), "sum up in fp32"
        return prescribe(cause, f"fp16 overflow ({beyond})", moved if change else text, 0.9, change)
    largest = max((stat.largest for stat in cause.inputs), default=0.0)
    kind = SHORT.get(cause.dtype, cause.dtype)
    if output.inf and largest > _ABSURD and cause.dtype in LIMITS:
        return prescribe(
            cause,
            f"{kind} overflow in {cause.name} (inputs up to {figure(largest)})",
            "values of this size mean that training diverged: divide the learning rate by 3, "
            "lengthen warm-up or clip the gradient norm, and normalise what grows",
            0.75,
        )
    return None


def _gradient_overflow(cause: Cause) -> Remedy | None:
    incoming = cause.incoming
    if cause.half:
        return prescribe(
            cause,
            f"fp16 overflow in backward of {cause.name} (incoming up to "
            f"{figure(incoming.largest)})",
            "gradients passed 65,504: scale the loss with torch.amp.GradScaler, which skips such a "
            "step and lowers its scale, or train in bf16; take the mean where the loss is a sum",
            0.85,
        )
    if incoming.largest > _ABSURD:
        return prescribe(
            cause,
            f"gradient overflow in backward of {cause.name} (incoming up to "
            f"{figure(incoming.largest)})",
            "the gradient grew beyond the format on its way back: lower the learning rate, shorten "
            "the sequence that is differentiated through, or normalise the layers in between",
            0.7,
        )
    return None


def _peak(cause: Cause) -> float:
    """Size of the result, where it follows from the largest inputs."""
    sizes = [stat.largest for stat in cause.inputs]
    first = cause.inputs[0] if cause.inputs else Stat()
    site = only(places(cause))
    if cause.name == "mul" and len(sizes) > 1:
        return sizes[0] * sizes[1]
    if cause.name in ("add", "sub") and len(sizes) > 1:
        return sizes[0] + sizes[1]
    if cause.name == "sum" and len(sizes) == 1 and site and len(site.operands) == 1:
        return abs(first.mean) * first.numel
    if cause.name == "pow" and len(sizes) == 1 and site:
        exponent = constant(site.operands[1]) if len(site.operands) > 1 else 2.0
        # Python raises where torch says infinity.
        return min(sizes[0], 1e30) ** exponent if exponent and 0 < exponent < 8 else 0.0
    return 0.0


def _scaled_before(cause: Cause) -> Change | None:
    """``q @ k / sqrt(d)``: divide ``q`` instead, which is the same and stays small."""
    code, site = cause.statement, only(places(cause, "mm"))
    if cause.name not in ("mm", "bmm", "addmm", "baddbmm") or code is None or site is None:
        return None
    scale = code.parents.get(site.node)
    if not isinstance(scale, ast.BinOp) or scale.left is not site.node or len(site.operands) != 2:
        return None
    scales = isinstance(scale.op, ast.Div | ast.Mult) and _number(code, scale.right)
    if not scales or site.method:
        return None
    sign = "/" if isinstance(scale.op, ast.Div) else "*"
    first = code.between(*code.outer(site.operands[0]), ())
    by = code.between(*code.outer(scale.right), ())
    if isinstance(site.operands[0], ast.BinOp) and first == code.text(site.operands[0]):
        first = f"({first})"
    moved = f"{first} {sign} {by}"
    moved = f"({moved})" if isinstance(site.node, ast.BinOp) else moved
    start, stop = code.outer(site.operands[0])
    # The product keeps its text; the rest of the expression is dropped.
    new = code.between(*code.outer(site.node), [Edit(start, stop, moved)])
    return Change(tuple(code.replace(scale, new)), scale)


def _number(code: Statement, node: ast.expr) -> bool:
    """Whether it is surely one number, and no tensor whose shape would matter."""
    text = code.text(node)
    if constant(node) is not None or text.startswith(("math.", "np.", "numpy.")):
        return True
    match node:
        case ast.BinOp(op=ast.Pow(), right=right):
            return constant(right) == 0.5
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.lower().endswith(("scale", "scaling", "sqrt_d", "sqrt_dk"))
        case _:
            return False


def _in_float(cause: Cause) -> Change | None:
    """A full sum or mean in fp32; its result is one number, whose format does not matter."""
    code = cause.statement
    if code is None:
        return None
    if cause.name in ("sum", "mean"):
        site = only(places(cause))
        if site and _full(site):
            return Change(tuple(code.append(site.operands[0], ".float()")), site.node)
    site = only(places(cause)) if cause.name == "pow" else None
    for above in code.ancestors(site.node) if site and not site.inplace else ():
        total = called(above, "sum") or called(above, "mean")
        if site and total and _full(total):
            return Change(tuple(code.append(site.operands[0], ".float()")), total.node)
        # A matrix product in between would want both sides in one format.
        if not isinstance(above, ast.BinOp | ast.UnaryOp | ast.Attribute):
            return None
    return None


def _full(site: Site) -> bool:
    return len(site.operands) == 1 and not site.keywords - {"input"}


RULES = {
    "exp": exponential, "expm1": exponential, "exp2": exponential, "cosh": exponential,
    "sinh": exponential,
}  # fmt: skip
