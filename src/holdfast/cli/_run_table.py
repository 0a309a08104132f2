"""A list of runs, as a table and for programs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..checkpoint.store import Entry
from ..errors import CheckpointError
from ..harmless import visible_line
from ..report import Line
from ..report.layout import Span, line
from ..report.run_list import INFO_ONLY, NO_FINDINGS, RunRow
from ..report.words import clip, number, size
from ._checkpoints import store_in

_HEAD = ("NAME", "STATUS", "STEPS", "VERDICT", "CHECKPOINT", "SIZE", "AGE")
_STYLES = {
    "finished": "green",
    "running": "cyan",
    "stalled": "yellow",
    "interrupted": "yellow",
    "unknown": "yellow",
}
_LONGEST = 44
# Columns that a narrow terminal does without, the first of them first; then names give way.
_HIDDEN = ("SIZE", "CHECKPOINT", "AGE", "STEPS")
_SHORTEST = 12


def newest_checkpoints(rows: Sequence[RunRow]) -> dict[Path, Entry]:
    """The newest checkpoint of each run that has one, by the path of the run."""
    found: dict[Path, Entry] = {}
    for row in rows:
        try:
            entry = store_in(row.path).newest()
        except CheckpointError:  # its folder cannot be listed
            continue
        if entry is not None:
            found[row.path] = entry
    return found


def plain_row(row: RunRow, entry: Entry | None) -> dict[str, Any]:
    """A row for programs."""
    return {
        "name": row.name,
        "path": str(row.path),
        "status": row.status,
        "ending": row.ending,
        "steps": row.steps,
        "verdict": row.verdict,
        "findings": row.findings,
        "checkpoint": None if entry is None else {"path": str(entry.path), "step": entry.step},
        "bytes": row.bytes,
        "created": row.created,
        "problem": row.problem,
    }


def table(
    rows: Sequence[RunRow], checkpoints: Mapping[Path, Entry], columns: int = 0
) -> list[Line]:
    """Runs, one line each, under a head; at most so many columns wide, 0 for any."""
    cells: list[dict[str, str]] = [
        dict(zip(_HEAD, _cells(row, checkpoints.get(row.path)), strict=True)) for row in rows
    ]
    widths = {name: max(len(name), *(len(cell[name]) for cell in cells)) for name in _HEAD}
    for name in _HIDDEN:
        if columns and _width(widths) > columns:
            del widths[name]
    if columns and (over := _width(widths) - columns) > 0:
        widths["NAME"] = max(_SHORTEST, widths["NAME"] - over)
    head = "  ".join(_set(name, name, width) for name, width in widths.items())
    lines = [line(Span(head, "bold"))]
    for row, texts in zip(rows, cells, strict=True):
        name = clip(texts["NAME"], widths["NAME"]).ljust(widths["NAME"])
        if row.problem:
            reported = f"damaged: {row.problem}"
            lines.append(line(name, "  ", Span(reported, "red")))
            continue
        spans: list[str | Span] = [name]
        for column, width in widths.items():
            if column != "NAME":
                spans += ["  ", Span(_set(column, texts[column], width), _style(column, row))]
        lines.append(line(*spans))
    return lines


def _style(column: str, row: RunRow) -> str:
    if column == "STATUS":
        return _STYLES.get(row.status, "red")
    sick = column == "VERDICT" and row.verdict not in ("", NO_FINDINGS, INFO_ONLY)
    return "bold yellow" if sick else ""


def _width(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + 2 * (len(widths) - 1)


def age(seconds: float) -> str:
    """How long ago, in one unit.

    >>> age(42), age(200), age(7300), age(90 * 3600)
    ('42 s', '3 min', '2 h', '3 d')
    """
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        # Two days are days; 30 hours are better told as hours.
        if seconds >= (2 if unit == "d" else 1) * length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} s"


def _cells(row: RunRow, entry: Entry | None) -> tuple[str, ...]:
    signal = row.ending.startswith(("killed by", "killed for"))
    status = "stalled?" if row.status == "stalled" else row.status
    return (
        clip(visible_line(row.name), _LONGEST),
        row.ending.partition(",")[0] if signal else status,
        number(row.steps),
        clip(visible_line(f"{row.verdict} {row.about}".strip()), _LONGEST) or "-",
        "-" if entry is None else f"step {number(entry.step)}",
        size(row.bytes),
        age(time.time() - row.created),
    )


def _set(column: str, text: str, width: int) -> str:
    return text.rjust(width) if column in ("STEPS", "SIZE", "AGE") else text.ljust(width)
