"""What detectors of lost time share: they judge what the guard's clock has said.

An event carries the numbers and the line; the detector says how bad that is and what to change.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from ..types import Event, Finding, Severity
from ._told import number, tells, told
from ._window import Mask, Window
from .base import Detector

# Never part of a finding: what has a place of its own.
_PLACED = ("file", "line", "code")


class TimedDetector(Detector):
    """Judges events of one kind."""

    kind: ClassVar[str]
    """Of the events it judges."""
    needs = ("data_wait",)
    severity = Severity.WARNING
    since = "0.3"
    within = 40
    judges_events = True

    def suspects(self, window: Window) -> Mask:
        """Rows that come with such an event."""
        return tells(window, (self.kind,))

    def check(self, window: Window) -> Finding | None:
        """Tell what the event says."""
        event = told(window, self.kind)
        if event is None:
            return None
        said = self.judge(event)
        if said is None:
            return None
        what, advice, severity, confidence = said
        file, line = str(event.data.get("file") or ""), number(event, "line")
        evidence: dict[str, Any] = {k: v for k, v in event.data.items() if k not in _PLACED}
        evidence["key"] = f"{file}:{line:.0f}" if file and line > 0 else ""
        evidence["statement"] = str(event.data.get("code") or "")
        finding = self.finding(
            window,
            f"{place(event)}{what}",
            advice,
            evidence=evidence,
            severity=severity,
            confidence=confidence,
        )
        return replace(finding, file=file, line=int(line) if line > 0 else 0)

    def judge(self, event: Event) -> tuple[str, str, Severity, float] | None:
        """What is wrong, the change that cures it, how bad it is, how sure that is."""
        raise NotImplementedError


def place(event: Event) -> str:
    """``train.py:57 `` in front of what happens there; "" where nobody knows."""
    file, line = str(event.data.get("file") or ""), number(event, "line")
    return f"{file.replace(chr(92), '/').split('/')[-1]}:{line:.0f} " if file and line > 0 else ""


def code_of(event: Event, most: int = 60) -> str:
    """The statement, cut to fit into a sentence."""
    code = " ".join(str(event.data.get("code") or "").split(" #")[0].split())
    return f"`{code[: most - 1]}…`" if len(code) > most else f"`{code}`" if code else "that line"


def word(event: Event, name: str) -> str:
    """A word among the data of an event."""
    return str(event.data.get(name) or "")
