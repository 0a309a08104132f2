"""The cause of a finding: the line, the inputs of the operation, the change that fixes it.

It comes from a file that another process wrote, so nothing in it is taken for granted: fields of
the wrong type are ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

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


@dataclass(frozen=True, kw_only=True)
class Stat:
    """One tensor in numbers; ``low``, ``high`` and ``mean`` are over its finite values."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    low: float | None
    high: float | None
    mean: float | None
    zeros: int
    negative: int
    nan: int
    inf: int
    numel: int

    @property
    def cells(self) -> tuple[str, ...]:
        """The numbers as a row of ``STAT_COLUMNS``."""
        measured = ("–" if v is None else words.figure(v) for v in (self.low, self.high, self.mean))
        counts = (self.zeros, self.negative, self.nan, self.inf)
        kind = f"{self.dtype} {'×'.join(map(str, self.shape)) or 'scalar'}".strip()
        return self.name, kind, *measured, *map(words.number, counts)


STAT_COLUMNS = ("tensor", "shape", "min", "max", "mean", "zeros", "negative", "NaN", "inf")


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Where a fault arose, and how to fix it."""

    headline: str
    file: str
    line: int
    diff: str = ""
    function: str = ""
    module: str = ""
    library: str = ""
    """File and line inside a library, called from the user's line."""
    phase: str = ""
    op: str = ""
    how: str = ""
    observed: int = -1
    first: int = 0
    """The statement to blame: its first and (with ``code``) its last line."""
    code: str = ""
    excerpt: tuple[tuple[int, str], ...] = ()
    stats: tuple[Stat, ...] = ()
    sample: str = ""
    row: int = -1
    samples_bad: int = 0
    samples: tuple[str, ...] = ()
    """All that share the cause, where there are several."""
    layer: str = ""

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
        first = self.first or self.line
        return range(first, first + max(1, len(self.code.splitlines())))

    @property
    def place(self) -> str:
        """Phase, operation, function and module in one phrase."""
        op = f"{_operation(self.op)}" if self.op else ""
        parts = [
            " ".join(filter(None, [op, _PHASES.get(self.phase, "")])),
            f"function {self.function}" if self.function.isidentifier() else "",
            f"module {self.module}" if self.module else "",
            f"parameter {self.layer}" if self.layer else "",
            f"inside {self.library}" if self.library else "",
        ]
        return ", ".join(filter(None, parts))

    @property
    def evidence(self) -> str:
        """How the cause was found."""
        method = _HOW.get(self.how, "")
        return f"{method} (step {self.observed})" if method and self.observed >= 0 else method

    @property
    def data(self) -> str:
        """The samples to blame; empty when there are none."""
        nbsp = words.NBSP
        if len(self.samples) > 1:
            more = ", …" * (len(self.samples) > _SAMPLES)
            return f"dataset indices{nbsp}{', '.join(self.samples[:_SAMPLES])}{more}"
        if not self.sample:
            return ""
        row = f" (row{nbsp}{self.row} of the batch)" if self.row >= 0 else ""
        bad = self.samples_bad
        also = f"; {words.plural(bad, 'non-finite row')} in the result" if bad > 1 else ""
        return f"dataset index{nbsp}{self.sample}{row}{also}"


def cause_of(finding: Finding) -> Cause | None:
    """The cause of a finding; None when it is unknown."""
    evidence = finding.evidence
    # Lines of the finding's own place are no cause that a test has found, but shown the same way.
    data = _mapping(evidence.get("cause")) or _mapping(evidence.get("source"))
    headline, diff = _text(evidence.get("headline")), _text(evidence.get("diff"))
    file, line = finding.file or _text(data.get("file")), finding.line or _whole(data.get("line"))
    if not (data or headline or diff or file):
        return None
    sample = data.get("sample")
    return Cause(
        headline=headline,
        file=file,
        line=line,
        diff=_cut(diff) + _more(diff),
        function=_text(data.get("function")),
        module=_text(data.get("module")),
        library=_text(data.get("library")),
        phase=_text(data.get("phase")),
        op=_text(data.get("op")),
        how=_text(data.get("how")),
        observed=_whole(data.get("observed"), -1),
        first=_whole(data.get("start")),
        code=_cut(_text(data.get("code"))),
        excerpt=_excerpt(data.get("excerpt")),
        stats=_stats(data),
        sample="" if sample is None or isinstance(sample, dict) else str(sample),
        row=_whole(data.get("row"), -1),
        samples_bad=_whole(data.get("samples_bad")),
        samples=tuple(map(str, _list(evidence.get("samples")))),
        layer=_text(data.get("layer")),
    )


def title_of(finding: Finding, cause: Cause | None) -> str:
    """The fault as the title of its section; the script's own names keep their case."""
    title = (cause and cause.headline) or finding.name.replace("_", " ")
    return words.capital(title, names_in(finding, cause))


def names_in(finding: Finding, cause: Cause | None) -> set[str]:
    """Names of the script's own in what is said of a finding: its variables and layers."""
    evidence = finding.evidence
    given = {**_mapping(evidence.get("cause")), **evidence}
    names = {_text(given.get(key)) for key in _NAMED}
    code = cause.code if cause is not None else ""
    return names | set(_IDENTIFIER.findall(code))


def _stats(data: Mapping[str, Any]) -> tuple[Stat, ...]:
    given = [_mapping(value) for value in _list(data.get("inputs"))[:8]]
    backward = data.get("phase") == "backward"
    what = "incoming gradient" if backward else "input"
    names = [what] if len(given) == 1 else [f"{what} {i}" for i in range(1, len(given) + 1)]
    stats = [_stat(name, v) for name, v in zip(names, given, strict=True)]
    if result := _mapping(data.get("output")):
        stats.append(_stat("result", result))
    return tuple(stats)


def _stat(name: str, data: Mapping[str, Any]) -> Stat:
    counts = {key: _whole(data.get(key)) for key in ("zeros", "negative", "nan", "inf", "numel")}
    shape = tuple(size for size in _list(data.get("shape")) if isinstance(size, int))
    low, high, mean = (_real(data.get(key)) for key in ("min", "max", "mean"))
    dtype = _text(data.get("dtype")).removeprefix("torch.")
    return Stat(name=name, shape=shape[:8], dtype=dtype, low=low, high=high, mean=mean, **counts)


def _excerpt(given: object) -> tuple[tuple[int, str], ...]:
    pairs = [_list(pair) for pair in _list(given)]
    return tuple(
        (int(pair[0]), words.clip(pair[1].rstrip(), _LINE))
        for pair in pairs[:_LINES]
        if len(pair) == 2 and isinstance(pair[0], int) and isinstance(pair[1], str)
    )


def _operation(op: str) -> str:
    return f"{op} of autograd" if re.search(r"Backward\d*$", op) else op


def _place(file: str, line: int) -> str:
    return place_words(file, line) if file and line > 0 else file


def _cut(text: str) -> str:
    return "\n".join(words.clip(line.rstrip(), _LINE) for line in text.splitlines()[:_LINES])


def _more(diff: str) -> str:
    over = len(diff.splitlines()) - _LINES
    return f"\n… {words.plural(over, 'line')} more: holdfast report --format json" * (over > 0)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: object, missing: int = 0) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else missing


def _real(value: object) -> float | None:
    """A number, or the word that files use for a non-finite one."""
    try:
        number = float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None
    return None if number is None or math.isnan(number) else number


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return cast("list[Any]", value) if isinstance(value, list | tuple) else ()
