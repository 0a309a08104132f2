"""Shared by the memory detectors: they judge measurements that were recorded as events.

An event says what holds the memory, which line makes it grow, and by how much. It belongs to the
first row that is not older than it. A value that keeps growing is measured repeatedly; the first
measurement that a detector believes becomes its finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ..types import Event, Finding, Severity, place_words
from ._events import number
from ._source_change import source_in
from ._window import Window
from .base import Detector

_SURE = {"trace": 0.95, "source": 0.85, "guess": 0.5}


class MemoryDetector(Detector):
    """Base class: makes a finding of the first event about each value that it believes."""

    severity = Severity.WARNING
    needs = ("loss",)
    since = "0.1"
    within = 20
    judges_events = True
    kinds: ClassVar[tuple[str, ...]]
    """The events that it judges."""
    names_a_variable: ClassVar[bool] = True
    """Whether the fault is something that a variable holds."""

    def scan(self, window: Window) -> Iterator[Finding]:
        """Every event that belongs to a new row."""
        first = len(window) - window.fresh
        for row, event in self._mine(window):
            if row >= first:
                yield self._finding(window.ending(row), event)

    def check(self, window: Window) -> Finding | None:
        """The first event that belongs to the judged row."""
        for row, event in self._mine(window):
            if row == len(window) - 1:
                return self._finding(window, event)
        return None

    def _mine(self, window: Window) -> list[tuple[int, Event]]:
        found: dict[str, tuple[int, Event]] = {}
        for event in window.events:
            if event.kind not in self.kinds or (about := self.about(event)) in found:
                continue
            rows = np.flatnonzero(window.rows["step"] >= event.step)
            if rows.size and self.believes(event):
                found[about] = int(rows[0]), event
        return sorted(found.values(), key=lambda pair: pair[0])

    def believes(self, event: Event) -> bool:
        """Whether a measurement is a case of this fault, and clear enough."""
        return True

    def about(self, event: Event) -> str:
        """What is measured: the same for all events about one value."""
        return f"{event.data.get('scope', '')}|{event.data.get('path', '')}"

    def _finding(self, window: Window, event: Event) -> Finding:
        data = event.data
        place = place_of(data)
        evidence: dict[str, Any] = {
            "key": place if data.get("line") else f"{place}|{data.get('path', '')}",
            **self.numbers(event),
        }
        if self.names_a_variable:
            evidence |= {
                "variable": str(data.get("path", "")),
                "bytes_per_step": number(event, "bytes"),
                "grown_for": number(event, "steps"),
            }
        if cause := self.cause(window, event):
            evidence["consequence"] = cause
        if shown := source_in(data):
            evidence |= {"source": shown, "headline": self.headline(event)}
        if diff := self.diff(event):
            evidence["diff"] = diff
        finding = self.finding(
            window,
            self.what(event),
            self.next_move(event),
            evidence=evidence,
            severity=Severity.ERROR if data.get("killed") else self.weight(event),
            confidence=_SURE.get(str(data.get("seen")), 0.8),
        )
        line = data.get("line")
        return replace(
            finding,
            file=str(data.get("file") or ""),
            line=line if isinstance(line, int) else 0,
            action=finding.action or self.done(event),
        )

    def done(self, event: Event) -> str:
        """What holdfast did about it; empty for nothing."""
        return ""

    def weight(self, event: Event) -> Severity:
        """How bad it is."""
        return self.severity

    def cause(self, window: Window, event: Event) -> str:
        """The code of the fault that this one follows from; empty for none."""
        return ""

    def what(self, event: Event) -> str:
        """The message, without the step."""
        raise NotImplementedError

    def next_move(self, event: Event) -> str:
        """The change for that line."""
        raise NotImplementedError

    def headline(self, event: Event) -> str:
        """The fault in a few words; by default its name."""
        return self.name.replace("_", " ")

    def diff(self, event: Event) -> str:
        """The change as a diff; empty where it takes more than one line to tell."""
        return ""

    def numbers(self, event: Event) -> Mapping[str, Any]:
        """Evidence of this detector alone."""
        return {}


def place_of(data: Mapping[str, Any]) -> str:
    """``file:line``, or the part of it that is known."""
    file, line = str(data.get("file") or ""), data.get("line")
    return place_words(file, line) if file and isinstance(line, int) and line else file


def at(data: Mapping[str, Any]) -> str:
    """`` (file:line)`` for the end of a sentence."""
    place = place_of(data)
    return f" ({place})" if place else ""


def code_of(data: Mapping[str, Any]) -> str:
    """The statement on one line, shortened."""
    words = " ".join(str(data.get("code") or "").split("#")[0].split())
    return words if len(words) <= 72 else words[:69] + "..."


def amount(size: float) -> str:
    """Bytes in readable units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
