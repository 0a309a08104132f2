"""The cause of a finding: the line, the inputs of the operation, the change that fixes it.

Findings of non-finite values have a whole record as their cause, others give as much of one as they
know. It comes from a file that another process wrote: what is no part of a record is ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..records import RecordError
from ..records.nonfinite import Cause, TensorStats
from ..types import Finding, place_words
from . import words

# Longer than any line a person writes; a data file in one line must not fill the page.
_LINE = 240
_LINES = 40
_SAMPLES = 16

# Where evidence has a name of the script's own; and one in its code that is no attribute, no call.
_NAMED = ("path", "name", "variable", "layer")
_IDENTIFIER = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?!\w|\s*\()")

_PHASES = {
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "loading": "while a batch was loaded",
    "optimizer": "in the optimizer",
    "parameter": "in a weight, before the step began",
    "input": "in the batch, before the model saw it",
    "carried": "kept from one step to the next",
}
_HOW = {
    "replay": "holdfast reran this batch and traced it",
    "next": "it happened again on a later step, which was traced",
    "look": "found by inspecting the values of the step",
    "carried": "found among the values that live across steps",
}
# What a finding that knows only some lines leaves out.
_UNKNOWN: Mapping[str, Any] = {"how": "", "phase": "", "file": "", "line": 0}


@dataclass(frozen=True, kw_only=True)
class StatsRow:
    """The numbers of one tensor, with its name among those of the operation."""

    name: str
    stats: TensorStats

    @property
    def cells(self) -> tuple[str, ...]:
        """The numbers as a row of ``STAT_COLUMNS``."""
        known, shape = self.stats, self.stats.shape[:8]
        measured = map(_figure, (known.min, known.max, known.mean))
        counts = (known.zeros, known.negative, known.nan, known.inf)
        kind = f"{known.dtype} {'×'.join(map(str, shape)) or 'scalar'}".strip()
        return self.name, kind, *measured, *map(words.number, counts)


STAT_COLUMNS = ("tensor", "shape", "min", "max", "mean", "zeros", "negative", "NaN", "inf")


@dataclass(frozen=True, kw_only=True)
class ShownCause:
    """Where a fault arose and how to fix it, as reports show it."""

    recorded: Cause
    """What the finding says of it; for most codes only some lines."""
    headline: str
    file: str
    line: int
    diff: str = ""
    step: int
    """The step it was recorded for."""
    code: str = ""
    excerpt: tuple[tuple[int, str], ...] = ()
    samples: tuple[str, ...] = ()
    """All that share the cause, where there are several."""

    @property
    def where(self) -> str:
        """File and line, as recorded; empty when unknown."""
        return _place(self.file, self.line)

    @property
    def near(self) -> str:
        """File and line without the folders, for one sentence."""
        return _place(re.split(r"[/\\]", self.file)[-1], self.line)

    @property
    def guilty(self) -> range:
        """The line numbers of the statement to blame."""
        first = self.recorded.start or self.line
        return range(first, first + max(1, len(self.code.splitlines())))

    @property
    def stats(self) -> tuple[StatsRow, ...]:
        """The inputs of the operation and its result, in numbers."""
        given, result = self.recorded.inputs[:8], self.recorded.output
        what = "incoming gradient" if self.recorded.backward else "input"
        names = [what] if len(given) == 1 else [f"{what} {i}" for i in range(1, len(given) + 1)]
        rows = [StatsRow(name=name, stats=one) for name, one in zip(names, given, strict=True)]
        return (*rows, *([] if result is None else [StatsRow(name="result", stats=result)]))

    @property
    def place(self) -> str:
        """Phase, operation, function and module in one phrase."""
        known = self.recorded
        op = f"{_operation(known.op)}" if known.op else ""
        parts = [
            " ".join(filter(None, [op, _PHASES.get(known.phase, "")])),
            f"function {known.function}" if known.function.isidentifier() else "",
            f"module {known.module}" if known.module else "",
            f"parameter {known.layer}" if known.layer else "",
            f"inside {known.library}" if known.library else "",
        ]
        return ", ".join(filter(None, parts))

    @property
    def evidence(self) -> str:
        """How the cause was found."""
        method, observed = _HOW.get(self.recorded.how, ""), self.recorded.observed
        return f"{method} (step {observed})" if method and observed >= 0 else method

    @property
    def data(self) -> str:
        """The samples to blame; empty when there are none."""
        nbsp, known = words.NBSP, self.recorded
        if len(self.samples) > 1:
            more = ", …" * (len(self.samples) > _SAMPLES)
            return f"dataset indices{nbsp}{', '.join(self.samples[:_SAMPLES])}{more}"
        if known.sample is None or isinstance(known.sample, dict) or known.sample == "":
            return ""
        row = f" (row{nbsp}{known.row} of the batch)" if known.row is not None else ""
        bad = known.samples_bad
        also = f"; {words.plural(bad, 'non-finite row')} in the result" if bad > 1 else ""
        return f"dataset index{nbsp}{known.sample}{row}{also}"


def cause_of(finding: Finding) -> ShownCause | None:
    """The cause of a finding; None when it is unknown."""
    evidence = finding.evidence
    # Lines of the finding's own place are no cause that a test has found, but shown the same way.
    data = _mapping(evidence.get("cause")) or _mapping(evidence.get("source"))
    headline, diff = _text(evidence.get("headline")), _text(evidence.get("diff"))
    known, step = _recorded(data), data.get("step")
    file, line = finding.file or known.file, finding.line or known.line
    if not (data or headline or diff or file):
        return None
    return ShownCause(
        recorded=known,
        headline=headline,
        file=file,
        line=line,
        diff=_cut(diff) + _more(diff),
        step=step if isinstance(step, int) else finding.step,
        code=_cut(known.code),
        excerpt=tuple((n, words.clip(text.rstrip(), _LINE)) for n, text in known.excerpt[:_LINES]),
        samples=tuple(map(str, _list(evidence.get("samples")))),
    )


def title_of(finding: Finding, cause: ShownCause | None) -> str:
    """The fault as the title of its section; the script's own names keep their case."""
    title = (cause and cause.headline) or finding.name.replace("_", " ")
    return words.capital(title, names_in(finding, cause))


def names_in(finding: Finding, cause: ShownCause | None) -> set[str]:
    """Names of the script's own in what is said of a finding: its variables and layers."""
    names = {_text(finding.evidence.get(key)) for key in _NAMED}
    if cause is None:
        return names
    return (
        names
        | {cause.recorded.variable, cause.recorded.layer}
        | set(_IDENTIFIER.findall(cause.code))
    )


def _recorded(data: Mapping[str, Any]) -> Cause:
    """As much of a cause as is known; a part that is none is left out."""
    given = {**_UNKNOWN, **{name: data[name] for name in Cause.fields() if name in data}}
    try:
        return Cause.from_dict(given)
    except RecordError:
        return Cause.from_dict({**_UNKNOWN, **{n: v for n, v in given.items() if _fits(n, v)}})


def _fits(name: str, value: Any) -> bool:
    try:
        Cause.from_dict({**_UNKNOWN, name: value})
    except RecordError:
        return False
    return True


def _operation(op: str) -> str:
    return f"{op} of autograd" if re.search(r"Backward\d*$", op) else op


def _place(file: str, line: int) -> str:
    return place_words(file, line) if file and line > 0 else file


def _cut(text: str) -> str:
    return "\n".join(words.clip(line.rstrip(), _LINE) for line in text.splitlines()[:_LINES])


def _more(diff: str) -> str:
    over = len(diff.splitlines()) - _LINES
    return f"\n… {words.plural(over, 'line')} more: holdfast report --format json" * (over > 0)


def _figure(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else words.figure(value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return cast("list[Any]", value) if isinstance(value, list | tuple) else ()
