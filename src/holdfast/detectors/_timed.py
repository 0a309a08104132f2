"""Shared by the throughput detectors: claims about a line, and when they become findings.

The training side records its measurements (``_lines``); each detector makes claims from one event
alone. A claim that may be chance is believed when another event repeats it, and reported when it
has cost enough time.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from ..types import Event, Finding, Severity, place_words
from ._lines import SourceLine
from ._window import (
    Rows,
    Window,
    column,
    optimizer,
)
from .base import Detector

# Seconds after an event for which a claim may wait until it has cost enough; beyond that, the next
# event makes it again.
_PATIENCE = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeClaim:
    """A claim that one event supports."""

    what: str
    """What is wrong, without the place."""
    advice: str
    severity: Severity
    confidence: float
    share: float
    """Share of the run's time lost to it."""
    seconds: float = 0.0
    """Seconds of the run when the event was recorded."""
    place: SourceLine | None = None
    function: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sure: bool = True
    """Certain: one event is enough."""
    worth: float = 0.0
    """Seconds that must be lost before it is reported, if more than ``Options.worth``."""
    headline: str = ""
    """The fault in a few words; by default the detector's name."""
    diff: str = ""
    """The fix as a diff; empty where it takes more than one line to tell."""
    case: str = ""
    """Identity of the claim, whichever of its lines an event names; the line if not given."""

    @property
    def key(self) -> str:
        """The line it is about."""
        return f"{self.place.file}:{self.place.first}" if self.place is not None else ""


class TimedDetector(Detector):
    """Makes findings of claims."""

    kinds: ClassVar[tuple[str, ...]]
    """Of the events that it judges."""
    needs = ("data_wait",)
    severity = Severity.WARNING
    since = "0.1"
    within = 40
    judges_events = True

    @dataclass(frozen=True, kw_only=True)
    class Options(Detector.Options):
        """When a claim is reported."""

        worth: float = 0.0
        """Seconds that must be lost."""

    def claims(self, event: Event) -> Iterator[TimeClaim]:
        """The claims that one event supports."""
        raise NotImplementedError

    def scan(self, window: Window) -> Iterator[Finding]:
        """New rows on which a claim is due that was not reported before."""
        first = len(window) - window.fresh
        events = [event for event in window.events if event.kind in self.kinds]
        # Nothing new, and earlier claims have been reported.
        if not any(self._recent(window, event) for event in events):
            return
        said: dict[str, Severity] = {}
        for row, claim in sorted(self._due_claims(window, events), key=lambda pair: pair[0]):
            case = claim.case or claim.key
            if case in said and claim.severity <= said[case]:
                continue
            said[case] = claim.severity
            if row >= first:
                yield self._finding(window.ending(row), claim)

    def check(self, window: Window) -> Finding | None:
        """The first claim that is due on the judged row."""
        return next(iter(self.scan(replace(window, fresh=1))), None)

    def _due_claims(
        self, window: Window, events: Sequence[Event]
    ) -> Iterator[tuple[int, TimeClaim]]:
        """Believed claims, each with the row it is due on."""
        claimed: set[str] = set()
        for event in events:
            rows = _rows_since(window.rows, event)
            claims = list(self.claims(event)) if rows.size else []
            for claim in claims:
                row = self._due(window, event, claim, rows)
                if row >= 0 and (claim.sure or claim.key in claimed):
                    yield row, claim
            claimed |= {claim.key for claim in claims}

    def _due(self, window: Window, event: Event, claim: TimeClaim, rows: Any) -> int:
        """The row on which a claim is reported; -1 for none yet."""
        worth = max(self.options.worth, claim.worth)
        missing = worth - claim.share * claim.seconds
        if missing <= 0:
            return int(rows[0])
        # Seconds go on being lost at the same rate.
        if missing > _PATIENCE * claim.share:
            return -1
        late = column(window.rows, "time")[rows] >= event.time + missing / claim.share
        own = optimizer(window.rows)[rows] == optimizer(window.rows)[rows[0]]
        due = rows[late & own]
        return int(due[0]) if due.size else -1

    def _recent(self, window: Window, event: Event) -> bool:
        """Whether a claim of an event may be due on a new row."""
        before = len(window) - window.fresh - 1
        if before < 0 or int(window.rows["step"][before]) < event.step:
            return True
        return float(column(window.rows, "time")[before]) <= event.time + _PATIENCE

    def _finding(self, window: Window, claim: TimeClaim) -> Finding:
        place, lost = claim.place, max(self.options.worth, claim.worth, claim.share * claim.seconds)
        evidence: dict[str, Any] = {"share": round(claim.share, 3), **claim.evidence}
        evidence |= {"lost": round(lost, 3), "function": claim.function, "key": claim.key}
        evidence["statement"] = place.code if place is not None else ""
        if place is not None and place.excerpt:
            evidence |= {"headline": claim.headline, "source": shown(place, claim.function)}
        if claim.diff:
            evidence["diff"] = claim.diff
        finding = self.finding(
            window,
            f"{_before(place)}{claim.what}",
            claim.advice,
            evidence=evidence,
            severity=claim.severity,
            confidence=claim.confidence,
        )
        if place is None:
            return finding
        return replace(finding, file=place.file, line=place.first)


def _rows_since(rows: Rows, event: Event) -> Any:
    return np.flatnonzero(rows["step"] >= event.step)


def shown(place: SourceLine, function: str = "") -> dict[str, Any]:
    """Statement and lines around it, as reports show them."""
    lines = range(place.first, place.line + 1)
    code = "\n".join(text for number, text in place.excerpt if number in lines)
    return {
        "file": place.file,
        "function": function,
        "start": place.first,
        "code": textwrap.dedent(code) or place.code,
        "excerpt": [list(line) for line in place.excerpt],
    }


def _before(place: SourceLine | None) -> str:
    """``train.py:57 `` in front of what happens there."""
    if place is None:
        return ""
    return f"{place_words(place.file.replace(chr(92), '/').split('/')[-1], place.first)} "


def quoted(place: SourceLine | None, most: int = 60) -> str:
    """The statement, shortened to fit into a sentence."""
    code = " ".join((place.code if place else "").split(" #")[0].split())
    return f"`{code[: most - 1]}…`" if len(code) > most else f"`{code}`" if code else "that line"


def ms(seconds: float) -> float:
    """Milliseconds for evidence."""
    return round(seconds * 1e3, 3)
