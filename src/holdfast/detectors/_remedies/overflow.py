"""Overflow: exp, fp16, and training that diverged."""

from __future__ import annotations

import math
import re

from ...records.nonfinite import Cause, TensorStats
from ...source.edits import Edit, Statement
from .cause import (
    LIMITS,
    SHORT,
    incoming,
    input_of,
    is_half,
    largest_of,
    limit_of,
    name_of,
    statement_of,
)
from .changes import guard_all
from .prescription import Remedy, StatementEdit, figure, only, places, prescribe
from .sites import Site

# exp(80) = 5.5e34 leaves room for sums and products in fp32, exp(10) = 22026 in fp16.
_EXPONENTS = {"float16": "10.0", "float64": "700.0"}
# What is the logarithm of a spread or a rate becomes a factor, and is squared: exp(20) = 4.9e8.
_LOGARITHMS = re.compile(r"log_?(var|std|sigma|scale|rate|s\b)", re.IGNORECASE)
# Inputs above this are no activations of a healthy training; a guess.
_ABSURD = 1e12


def exponential(cause: Cause) -> Remedy | None:
    """exp and the like beyond the range of the format."""
    stat, name = input_of(cause, 0) or TensorStats(), name_of(cause)
    largest = largest_of(stat) if name in ("cosh", "sinh") else stat.high
    if cause.backward or (stat.inf and not largest > 10):
        return None
    peak = "" if math.isnan(largest) else f" (max {figure(largest)})"
    headline = f"{name} overflow{peak}"
    end = math.log2(limit_of(cause)) if name == "exp2" else math.log(limit_of(cause))
    text = f"{SHORT.get(cause.dtype, 'fp32')} ends at {name}({end:.1f})"
    if largest > 10 * end:
        text += (
            "; a value that large comes from an unscaled input or a diverging model: look there too"
        )
    bound = _EXPONENTS.get(cause.dtype, "80.0")

    def below(code: Statement, site: Site) -> list[Edit]:
        if name in ("cosh", "sinh"):
            return code.append(site.operands[0], f".clamp(-{bound}, {bound})")
        logarithm = bound != "10.0" and _LOGARITHMS.search(code.text(site.operands[0]))
        return code.append(site.operands[0], f".clamp_max({'20.0' if logarithm else bound})")

    if "log(" in cause.code or "sum(" in cause.code:
        text += "; torch's own softmax, logsumexp and softplus do not overflow"
    text += ": clamp the argument"
    return prescribe(cause, headline, text, 0.9, guard_all(cause, below))


def overflow(cause: Cause) -> Remedy | None:
    """Finite inputs and an infinite result: an overflow of the format."""
    output = cause.output or TensorStats()
    given = (incoming(cause),) if cause.backward else cause.inputs
    if not output.bad or any(stat.bad for stat in given):
        return None
    largest = max((largest_of(stat) for stat in given), default=0.0)
    size = f"(inputs up to {figure(largest)})"
    if cause.backward:
        return _gradient_overflow(cause, largest)
    if is_half(cause):
        return _half_overflow(cause, size)
    if largest > _ABSURD and cause.dtype in LIMITS:
        return prescribe(
            cause,
            f"{SHORT[cause.dtype]} overflow in {name_of(cause)} {size}",
            "values of this size mean that training diverged: divide the learning rate by 3, "
            "lengthen warm-up or clip the gradient norm, and normalise what grows",
            0.75,
        )
    return None


def _gradient_overflow(cause: Cause, largest: float) -> Remedy | None:
    size = f"in backward of {name_of(cause)} (incoming up to {figure(largest)})"
    if is_half(cause):
        return prescribe(
            cause,
            f"fp16 overflow {size}",
            "gradients passed 65,504: scale the loss with torch.amp.GradScaler, which skips such a "
            "step and lowers its scale, or train in bf16; take the mean where the loss is a sum",
            0.85,
        )
    if largest > _ABSURD:
        return prescribe(
            cause,
            f"gradient overflow {size}",
            "the gradient grew beyond the format on its way back: lower the learning rate, shorten "
            "the sequence that is differentiated through, or normalise the layers in between",
            0.7,
        )
    return None


def _half_overflow(cause: Cause, size: str) -> Remedy:
    headline = f"fp16 overflow in {name_of(cause)}, beyond 65,504 {size}"
    summed = _summed_in_float(cause)
    if summed:
        return prescribe(cause, headline, "sum up in fp32", 0.9, summed)
    text = (
        "compute it in fp32, under torch.autocast(device_type, enabled=False) with .float() on its "
        "inputs, scale attention scores before the product, or train in bf16, whose range ends at "
        "3e38; a GradScaler does not help in forward"
    )
    return prescribe(cause, headline, text, 0.9)


def _summed_in_float(cause: Cause) -> StatementEdit | None:
    """A full sum or mean in fp32; its result is one number, whose format does not matter."""
    code, site = statement_of(cause), only(places(cause))
    if code is None or site is None or name_of(cause) not in ("sum", "mean"):
        return None
    first, *dims = site.operands
    if dims or site.keywords:
        return None
    return StatementEdit(tuple(code.append(first, ".float()")), site.node)


RULES = dict.fromkeys(("exp", "expm1", "exp2", "cosh", "sinh"), exponential)
