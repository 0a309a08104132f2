"""Print a detector's docstring on the terminal: the same text as on the web page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..detectors import Detector, document
from .layout import (
    WIDTH,
    Line,
    Span,
    line,
    paragraph,
)

_CODE = re.compile(r"``(.+?)``")


def explain_lines(detector: type[Detector]) -> list[Line]:
    """The whole document of one detector."""
    page = document(detector)
    preview = ", preview: still being tried out" if detector.preview else ""
    facts = f"{detector.severity.word}, since holdfast {detector.since}{preview}"
    lines = [
        line(Span(detector.code, "bold"), "  ", Span(detector.name, "bold"), f"  ({facts})"),
        line(*_spans(page.summary)),
    ]
    for title, body in page.sections.items():
        lines += [line(), line(Span(title, "bold"))]
        lines += [line("  ", *_spans(row)) for row in body.splitlines()]
    return lines


def catalogue_lines(detectors: Sequence[type[Detector]], width: int = WIDTH) -> list[Line]:
    """Every detector in one line each, by code."""
    lines: list[Line] = []
    for detector in sorted(detectors, key=lambda d: d.code):
        summary = _CODE.sub(r"\1", document(detector).summary)
        lines += paragraph(summary, label=detector.code, column=8, width=width, label_style="bold")
    return [*lines, line(), line("`holdfast explain CODE` says what to do about one.")]


def _spans(text: str) -> list[Span]:
    """Text with ``code`` in a colour of its own, and between plain backticks without colours."""
    parts = _CODE.split(text)
    return [Span(f"`{part}`", "cyan") if i % 2 else Span(part) for i, part in enumerate(parts)]
