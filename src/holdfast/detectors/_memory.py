"""Shared by the memory detectors: they judge measurements that were recorded as events.

An event says what holds the memory, which line makes it grow, and by how much. It belongs to the
first row that is not older than it. A value that keeps growing is measured repeatedly; the first
measurement that a detector believes becomes its finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from ..records import Kind
from ..records.memory import CodeLine, GraphChain, HeldValue, WorkerMemory
from ..source.diffs import source_in
from ..types import Event, Finding, Severity, place_words
from ._window import Window
from .base import Detector

_SURE = {"trace": 0.95, "source": 0.85, "guess": 0.5}

Measured = TypeVar("Measured")
"""What a detector reads of an event: mostly the record of one of its kinds."""


class MemoryDetector(Detector, Generic[Measured]):
    """Base class: makes a finding of the first event about each value that it believes."""

    severity = Severity.WARNING
    needs = ("loss",)
    since = "0.1"
    within = 20
    judges_events = True
    kinds: ClassVar[tuple[type[Kind], ...]]
    """The events that it judges."""

    def scan(self, window: Window) -> Iterator[Finding]:
        """Every event that belongs to a new row."""
        first = len(window) - window.fresh
        for row, event in self._own(window):
            if row >= first:
                yield self._finding(window.ending(row), event)

    def check(self, window: Window) -> Finding | None:
        """The first event that belongs to the judged row."""
        for row, event in self._own(window):
            if row == len(window) - 1:
                return self._finding(window, event)
        return None

    def _own(self, window: Window) -> list[tuple[int, Measured]]:
        found: dict[str, tuple[int, Measured]] = {}
        for event in window.events:
            if (measured := self.read(event)) is None or (about := self.about(measured)) in found:
                continue
            rows = np.flatnonzero(window.rows["step"] >= event.step)
            if rows.size and self.believes(measured):
                found[about] = int(rows[0]), measured
        return sorted(found.values(), key=lambda pair: pair[0])

    def read(self, event: Event) -> Measured | None:
        """What an event says; None for one of another kind."""
        kind = next((kind for kind in self.kinds if kind.kind == event.kind), None)
        record: Any = None if kind is None else kind.of(event)
        return record

    def line(self, measured: Measured) -> CodeLine:
        """The line that is named."""
        return measured if isinstance(measured, CodeLine) else CodeLine()

    def believes(self, measured: Measured) -> bool:
        """Whether a measurement is a case of this fault, and clear enough."""
        return True

    def about(self, measured: Measured) -> str:
        """What is measured: the same for all events about one value."""
        raise NotImplementedError

    def _finding(self, window: Window, measured: Measured) -> Finding:
        line = self.line(measured)
        evidence = self.evidence(measured)
        if cause := self.cause(window, measured):
            evidence["consequence"] = cause
        if shown := source_in(line.to_dict() | {"function": self.function(measured)}):
            evidence |= {"source": shown, "headline": self.headline(measured)}
        if diff := self.diff(measured):
            evidence["diff"] = diff
        finding = self.finding(
            window,
            self.what(measured),
            self.next_move(measured),
            evidence=evidence,
            severity=self.weight(measured),
            confidence=_SURE.get(line.seen, 0.8),
        )
        done = finding.action or self.done(measured)
        return replace(finding, file=line.file, line=line.line, action=done)

    def evidence(self, measured: Measured) -> dict[str, Any]:
        """Which finding it is, and its numbers."""
        line = self.line(measured)
        key = place_of(line) if line.line else f"{place_of(line)}|"
        return {"key": key, **self.numbers(measured)}

    def function(self, measured: Measured) -> str:
        """The function that the line is in, where it was recorded."""
        return str(getattr(measured, "function", ""))

    def done(self, measured: Measured) -> str:
        """What holdfast did about it; empty for nothing."""
        return ""

    def weight(self, measured: Measured) -> Severity:
        """How bad it is."""
        return self.severity

    def cause(self, window: Window, measured: Measured) -> str:
        """The code of the fault that this one follows from; empty for none."""
        return ""

    def what(self, measured: Measured) -> str:
        """The message, without the step."""
        raise NotImplementedError

    def next_move(self, measured: Measured) -> str:
        """The change for that line."""
        raise NotImplementedError

    def headline(self, measured: Measured) -> str:
        """The fault in a few words; by default its name."""
        return self.name.replace("_", " ")

    def diff(self, measured: Measured) -> str:
        """The change as a diff; empty where it takes more than one line to tell."""
        return ""

    def numbers(self, measured: Measured) -> Mapping[str, Any]:
        """Evidence of this detector alone."""
        return {}


Held = TypeVar("Held", bound=HeldValue | WorkerMemory)


class VariableDetector(MemoryDetector[Held]):
    """Base class: the fault is something that a variable holds."""

    def about(self, measured: Held) -> str:
        """The variable: the same for all events about it."""
        scope = measured.scope if isinstance(measured, HeldValue) else ""
        return f"{scope}|{measured.path}"

    def weight(self, measured: Held) -> Severity:
        """How bad it is: an error where it has ended the run."""
        ended = isinstance(measured, GraphChain) and measured.killed
        return Severity.ERROR if ended else self.severity

    def evidence(self, measured: Held) -> dict[str, Any]:
        """The numbers, and the variable."""
        found = super().evidence(measured)
        return {
            **found,
            "key": found["key"] if measured.line else f"{found['key']}{measured.path}",
            "variable": measured.path,
            "bytes_per_step": measured.bytes,
            "grown_for": float(measured.steps),
        }


def place_of(line: CodeLine) -> str:
    """``file:line``, or the part of it that is known."""
    return place_words(line.file, line.line) if line.file and line.line else line.file


def at(line: CodeLine) -> str:
    """`` (file:line)`` for the end of a sentence."""
    place = place_of(line)
    return f" ({place})" if place else ""


def code_of(line: CodeLine) -> str:
    """The statement on one line, shortened."""
    words = " ".join(line.code.split("#")[0].split())
    return words if len(words) <= 72 else words[:69] + "..."


def amount(size: float) -> str:
    """Bytes in readable units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
