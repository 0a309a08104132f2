"""A list of runs, as a table and for programs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..checkpoint.store import Entry
from ..errors import CheckpointError
from ..report import Line
from ..report.layout import Span, line
from ..report.run_list import HEALTHY, RunRow
from ..report.words import clip, number, size, visible
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


def table(rows: Sequence[RunRow], checkpoints: Mapping[Path, Entry]) -> list[Line]:
    """Runs, one line each, under a head."""
    cells = [_cells(row, checkpoints.get(row.path)) for row in rows]
    widths = [max(len(row[i]) for row in (_HEAD, *cells)) for i in range(len(_HEAD))]
    lines = [line(Span(_joined(_HEAD, widths), "bold"))]
    for row, texts in zip(rows, cells, strict=True):
        if row.problem:
            told = f"damaged: {visible(row.problem)}"
            lines.append(line(texts[0].ljust(widths[0]), "  ", Span(told, "red")))
            continue
        before = len(texts[0].ljust(widths[0])) + 2
        text = _joined(texts, widths)
        status = text[before : before + widths[1]]
        after = before + widths[1]
        verdict = after + 2 + widths[2] + 2
        style = "" if row.verdict in ("", HEALTHY) else "bold yellow"
        lines.append(
            line(
                text[:before],
                Span(status, _STYLES.get(row.status, "red")),
                text[after:verdict],
                Span(text[verdict : verdict + widths[3]], style),
                text[verdict + widths[3] :],
            )
        )
    return lines


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
        clip(visible(row.name), _LONGEST),
        row.ending.partition(",")[0] if signal else status,
        number(row.steps),
        row.verdict or "-",
        "-" if entry is None else f"step {number(entry.step)}",
        size(row.bytes),
        age(time.time() - row.created),
    )


def _joined(texts: Sequence[str], widths: Sequence[int]) -> str:
    right = {"STEPS", "SIZE", "AGE"}
    return "  ".join(
        text.rjust(width) if name in right else text.ljust(width)
        for name, text, width in zip(_HEAD, texts, widths, strict=True)
    )
