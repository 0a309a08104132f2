"""Parts that all rules share: the remedy, the code change, the right epsilon."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...records.nonfinite import Cause
from ...source.diffs import indent_of, unified
from ...source.edits import Edit
from .cause import is_half, name_of, statement_of
from .sites import Site, sites

# Confidence by how the cause was found; guesses.
_HOW = {"replay": 1.0, "next": 0.85, "carried": 1.0}
# What keeps log, sqrt and division finite, forward and backward. fp16 stores 1e-12 as zero, and
# its largest number is 65504, which 1/1e-6 and the cube of 1/sqrt(1e-4) already pass.
_HALF = {"log": "1e-6", "sqrt": "1e-6", "div": "1e-4", "rsqrt": "1e-3"}
# Distance to 1 that a format can represent: near 1 its numbers are 6e-8, 5e-4 or 4e-3 apart.
_EDGE = {"float16": "1e-3", "bfloat16": "1e-2"}


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """The fault in a few words, the change that fixes it, and the confidence."""

    headline: str
    text: str
    diff: str = ""
    confidence: float


@dataclass(frozen=True)
class StatementEdit:
    """Edits of the statement, and the place whose new form is worth quoting."""

    edits: tuple[Edit, ...]
    node: ast.AST


def prescribe(
    cause: Cause, headline: str, text: str, confidence: float, change: StatementEdit | None = None
) -> Remedy:
    """Build a remedy; where the change can be applied, the text ends with the new code."""
    code, diff = statement_of(cause), ""
    new = code.edited(change.edits) if code and change and _own(cause.file) else ""
    if code and change and new:
        indent = indent_of(cause.code, cause.first_line, cause.excerpt)
        diff = unified(code.code, new, file=cause.file, line=cause.first_line, indent=indent)
        quote = code.quoted(change.node, change.edits)
        text = f"{text}: {quote}" if quote else text
    how = _HOW.get(cause.how, 0.8)
    return Remedy(headline=headline, text=text, diff=diff, confidence=round(confidence * how, 3))


def places(cause: Cause, name: str = "") -> list[Site]:
    """Places of the bad operation in the statement; empty when it is not visible there."""
    code = statement_of(cause)
    if code is None:
        return []
    line = cause.line - cause.first_line + 1 if cause.line else 0
    return sites(code, name or name_of(cause), line)


def only(found: Sequence[Site]) -> Site | None:
    """The only place; None when there is none or more than one."""
    return found[0] if len(found) == 1 else None


def epsilon(cause: Cause, kind: str) -> str:
    """Smallest epsilon that works in the format at hand."""
    return _HALF[kind] if is_half(cause) else "1e-12"


def edge(cause: Cause) -> str:
    """The distance to keep from a singularity at 1 or -1."""
    return _EDGE.get(cause.dtype, "1e-6")


def figure(value: float) -> str:
    """Format a number for a headline: 104, 71,000, -1.2e-07."""
    if 1e3 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def amount(number: int, numel: int, one: str, many: str) -> str:
    """Count with its noun: ``3 of 640 divisors are``, or for a single one ``the divisor is``."""
    if number == 1:
        many = re.sub(r"\bare$", "is", many)
    return f"{number} of {numel} {many}" if numel > 1 else one


def _own(file: str) -> bool:
    """Whether a file is the user's: a library is not theirs to change."""
    return not re.search(r"[/\\](site|dist)-packages[/\\]", file)
