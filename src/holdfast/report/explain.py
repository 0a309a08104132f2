"""Print a detector's docstring and its options on the terminal, without names of evidence."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from ..detectors import Detector, document
from ..detectors.options import describe_options
from ..detectors.search import is_about
from . import words
from .layout import (
    WIDTH,
    Line,
    Span,
    line,
    paragraph,
)

_POINT = re.compile(r"\s*(?:[-*]|\d+\.)\s+")
_MORE = "`holdfast explain CODE` says what to do about one."
_CODE = re.compile(r"``(.+?)``")
# Fields of a finding in JSON, which are for programs: the pages of `make docs` have them.
_FIELDS = "Evidence"


def explain_lines(detector: type[Detector], width: int = 0) -> list[Line]:
    """The whole document of one detector; as it was written where ``width`` does not matter."""
    page = document(detector)
    preview = ", preview: still being tried out" if detector.preview else ""
    facts = f"{detector.severity.word}, since holdfast {detector.since}{preview}"
    severities = [f"Severity: {detector.severity_words()}."] if detector.other_severities else []
    lines = [
        line(Span(detector.code, "bold"), "  ", Span(detector.name, "bold"), f"  ({facts})"),
        *(line(*_spans(row)) for row in _reflowed([page.summary], width or WIDTH)),
        *(line(row) for row in _reflowed(severities, min(width or WIDTH, WIDTH))),
    ]
    for title, body in page.sections.items():
        if title == _FIELDS:
            continue
        lines += [line(), line(Span(title, "bold"))]
        rows = body.splitlines()
        if width and max(map(len, rows), default=0) + 2 > width:
            rows = _reflowed(rows, width - 2)
        lines += [line("  ", *_spans(row)) for row in rows]
    return [*lines, *_option_lines(detector, width or WIDTH)]


def _option_lines(detector: type[Detector], width: int) -> list[Line]:
    """The options with their defaults; a class without source has no meanings to show."""
    try:
        described = describe_options(detector)
    except (OSError, SyntaxError):
        return []
    if not described:
        return []
    rows = [
        f"- {detector.code}.{option.name} = {option.default:.10g}: {option.meaning}"
        for option in described
    ]
    title = line(Span("Options", "bold"), "  (--set detectors.CODE.OPTION=VALUE)")
    reported = _reflowed(rows, min(width, WIDTH) - 2)
    return [line(), title, *(line("  ", *_spans(row)) for row in reported)]


def _reflowed(rows: Sequence[str], width: int) -> list[str]:
    """Rows of text in a narrow column: paragraphs and points of a list, each on its own."""
    items: list[str] = []
    for row in rows:
        begins = not items or not row.strip() or not items[-1].strip() or _POINT.match(row)
        if begins:
            items.append(row)
        else:
            items[-1] = f"{items[-1]} {row.strip()}"
    reported: list[str] = []
    for item in items:
        # Code stays on one row.
        item = _CODE.sub(lambda found: found[0].replace(" ", words.NBSP), item)
        point = _POINT.match(item)
        below = " " * (len(point[0]) if point else 0)
        reported += textwrap.wrap(
            item,
            max(20, width),
            subsequent_indent=below,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return reported


def catalogue_lines(detectors: Sequence[type[Detector]], width: int = WIDTH) -> list[Line]:
    """Every detector in one line each, by code."""
    return [*_list(sorted(detectors, key=lambda d: d.code), width), line(), line(_MORE)]


def found_lines(asked: str, detectors: Sequence[type[Detector]], width: int = WIDTH) -> list[Line]:
    """The detectors that fit some words, or only have them on their pages, the best first."""
    verb = "fit" if any(is_about(asked, detector) for detector in detectors) else "mention"
    head = f"{len(detectors)} findings {verb} {asked!r}, the best first:"
    if len(detectors) == 1:
        head = f"nothing is about {asked!r} itself; one finding mentions it:"
    return [*paragraph(head, width=width), line(), *_list(detectors, width), line(), line(_MORE)]


def _list(detectors: Sequence[type[Detector]], width: int) -> list[Line]:
    lines: list[Line] = []
    for detector in detectors:
        summary = _CODE.sub(r"\1", document(detector).summary)
        lines += paragraph(summary, label=detector.code, column=8, width=width, label_style="bold")
    return lines


def _spans(text: str) -> list[Span]:
    """Text with ``code`` in a colour of its own, and between plain backticks without colours."""
    parts = _CODE.split(text)
    return [Span(f"`{part}`", "cyan") if i % 2 else Span(part) for i, part in enumerate(parts)]
