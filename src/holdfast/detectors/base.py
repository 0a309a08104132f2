"""The shape of a detector: one fault, one class, one document.

>>> class HighLoss(Detector):
...     \'\'\'The loss is above 100.\'\'\'
...     code, name, since = "XYZ001", "high_loss", "0.1"
...     severity, needs = Severity.WARNING, ("loss",)
...     def check(self, window):
...         if not window.value("loss") > 100:
...             return None
...         return self.finding(window, "loss is high", "lower the learning rate")
>>> rows = np.array([(0, 1.0), (1, 500.0)], dtype=[("step", "<i8"), ("loss", "<f4")])
>>> [f.step for f in HighLoss().scan(Window(rows=rows, fresh=2))]
[1]
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..types import Finding, Severity
from ._examples import Example
from ._symptoms import gradient_bad, loss_bad
from ._window import Mask, Rows, Window

SECTIONS = (
    "What it detects",
    "Why it matters",
    "Evidence",
    "Usual causes",
    "What to do",
    "False alarms",
    "Cost",
    "Reproduce",
)

SKIPPED = ((Severity.WARNING, "where the step was skipped"),)
"""The severity of an error that holdfast has prevented."""


class Detector:
    """Base class of detectors: decides whether a window of recorded rows shows one fault.

    A detector does no I/O, imports no torch, reads no clock and keeps nothing between calls:
    its findings depend on the window alone, so that a live run and a replay agree.
    """

    code: ClassVar[str]
    """Family and number, never reused: ``NUM001``."""
    name: ClassVar[str]
    """What is wrong, as a Python name: ``nonfinite_loss``."""
    severity: ClassVar[Severity]
    """How bad it is when holdfast could not prevent it."""
    other_severities: ClassVar[tuple[tuple[Severity, str], ...]] = ()
    """Other severities that its findings may have, and when."""
    needs: ClassVar[tuple[str, ...]]
    """Columns that it cannot do without."""
    since: ClassVar[str]
    """Version of holdfast in which it appeared."""
    preview: ClassVar[bool] = False
    """Still being tried out: its findings may be wrong."""
    within: ClassVar[int] = 1
    """Steps between the fault and the finding, at most."""
    judges_events: ClassVar[bool] = False
    """Judges events alone: also runs at the end, on the events after the last row."""
    judges_waiting: ClassVar[bool] = False
    """Also judges events before there is a row of their step: none may ever come."""
    precedes: ClassVar[str] = ""
    """The code of a detector that it comes before, wherever it stands in the order of causes."""
    explains_line: ClassVar[bool] = False
    """Findings of its family about the same line are consequences of this one."""
    explains_growth: ClassVar[str] = ""
    """With this ``what`` in its evidence, small leaks on its line are consequences too."""
    soon_after: ClassVar[str] = ""
    """The code of a finding that explains it where that was found some steps before."""
    follows: ClassVar[Mapping[str, str]] = {}
    """By ``what`` of its evidence: codes of findings that explain it, where there are any."""

    fires: ClassVar[Example | None] = None
    """A run that it must speak about, at its last step; None where it judges no single lane."""
    silent: ClassVar[Example | None] = None
    """A run that comes near that, about which it must say nothing."""
    also_called: ClassVar[tuple[str, ...]] = ()
    """Words that users have for it besides its name, for ``holdfast explain``: ``lr zero``."""

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Thresholds of this detector; each says whether it was measured or guessed."""

    @classmethod
    def severity_words(cls) -> str:
        """How bad its findings are: ``error; warning where the step was skipped``."""
        others = (f"{severity.word} {when}" for severity, when in cls.other_severities)
        return "; ".join([cls.severity.word, *others])

    def __init__(self, options: Any = None) -> None:
        self.options: Any = self.Options() if options is None else options

    def suspects(self, window: Window) -> Mask:
        """Select the new rows that ``check`` must look at; a cheap filter over all of them at once.

        Must decide on each row by that row and what came before it, never by how many are
        new. A detector of trends may pick one row in many here (by step number) and look back
        from there.
        """
        return np.ones(window.fresh, dtype=np.bool_)

    def check(self, window: Window) -> Finding | None:
        """Judge the newest row, given the rows before it."""
        raise NotImplementedError

    def scan(self, window: Window) -> Iterator[Finding]:
        """Judge every new row of the window, in order."""
        if not window.fresh:
            return
        first = len(window) - window.fresh
        for offset in np.flatnonzero(self.suspects(window)).tolist():
            finding = self.check(window.ending(first + offset))
            if finding is not None:
                yield finding

    def finding(
        self,
        window: Window,
        what: str,
        advice: str,
        *,
        layer: str = "",
        evidence: Mapping[str, Any] | None = None,
        severity: Severity | None = None,
        confidence: float = 1.0,
    ) -> Finding:
        """Make a Finding on the judged row; the message says whether the step was skipped.

        Unless ``severity`` is given, a step that holdfast skipped is a warning at most: it
        did no harm.
        ``layer`` is part of the finding's identity: same code, optimizer and layer are one
        finding, seen several times. Evidence that was not measured (NaN) is omitted.
        """
        skipped = window.says("skipped")
        usual = min(self.severity, Severity.WARNING) if skipped else self.severity
        loss = window.value("loss")
        seen = "NaN" if math.isnan(loss) and _suffered(window, loss_bad) else loss
        numbers = {"loss": seen, "lr": window.value("lr")} | dict(evidence or {})
        return Finding(
            code=self.code,
            name=self.name,
            severity=usual if severity is None else severity,
            step=window.step,
            last_step=window.step,
            rank=window.rank,
            message=f"step {window.step}{_fate(window)}: {what}",
            advice=advice,
            action="skip_update" if skipped else "",
            confidence=confidence,
            evidence={
                "count": 1,
                "skipped": int(skipped),
                "steps": [window.step],
                "opt": window.opt,
                "layer": layer,
                **{key: _plain(value) for key, value in numbers.items() if value == value},
            },
        )


def _fate(window: Window) -> str:
    """Whether the judged step was skipped, and by whom; "" where nobody decided."""
    if window.says("skipped"):
        return " skipped"
    if window.says("scaler_skipped"):
        return " skipped by GradScaler"
    # "NOT skipped" matters only where there was a reason to skip.
    bad = _suffered(window, loss_bad) or _suffered(window, gradient_bad)
    return " NOT skipped" if bad else ""


def _suffered(window: Window, symptom: Callable[[Rows], Mask]) -> bool:
    return bool(symptom(window.rows[-1:])[0])


def _plain(value: Any) -> Any:
    """Convert evidence for JSON, which has no infinity: spell it as the run files do."""
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class DetectorDoc:
    """The docstring of a detector, by section."""

    summary: str
    sections: Mapping[str, str]


def document(detector: type[Detector]) -> DetectorDoc:
    """Read a detector's docstring: the first line, then the sections by title."""
    lines = inspect.cleandoc(detector.__doc__ or "").splitlines()
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines[1:]:
        title = line[:-1] if line.endswith(":") and not line.startswith(" ") else ""
        if title in SECTIONS:
            current = sections[title] = []
        else:
            current.append(line)
    return DetectorDoc(
        summary=lines[0] if lines else "",
        sections={k: inspect.cleandoc("\n".join(["", *v])).strip() for k, v in sections.items()},
    )
