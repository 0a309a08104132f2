"""A crash on the page: the values that met on the line, the script's calls, the traceback."""

from __future__ import annotations

from collections.abc import Sequence

from ..crash import VALUE_COLUMNS, CrashDetails
from .elements import Html, join, tag


def crash_html(details: CrashDetails) -> Html:
    """Tables and the folded traceback."""
    return join(
        _values(details.operands, "What met on this line"),
        _folded("Variables of the function", _values(details.variables, "Variables")),
        _folded("Calls of the script, outermost first", _calls(details)),
        _folded("Traceback", _traceback(details)),
    )


def _values(rows: Sequence[tuple[str, ...]], caption: str) -> Html | None:
    if not rows:
        return None
    head = tag("tr", [tag("th", column, scope="col") for column in VALUE_COLUMNS])
    body = [
        tag("tr", tag("th", row[0], scope="row"), [tag("td", cell) for cell in row[1:]])
        for row in rows
    ]
    table = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", body))
    return tag("div", table, class_="scroll values", tabindex="0")


def _calls(details: CrashDetails) -> Html | None:
    if not details.frames:
        return None
    rows = [
        tag("li", tag("code", where), f" in {function}: " if function else ": ", tag("code", code))
        for where, function, code in details.frames
    ]
    return tag("ol", rows)


def _traceback(details: CrashDetails) -> Html | None:
    if not details.traceback:
        return None
    return tag("pre", tag("code", details.traceback), class_="excerpt copied", tabindex="0")


def _folded(title: str, content: Html | None) -> Html | None:
    return tag("details", tag("summary", title), content) if content is not None else None
