"""JSON lines and CSV with the same keys, for those who have no tracker, and for scripts.

RUN/track/metrics.jsonl   one line per point: step, time and the numbers
RUN/track/metrics.csv     the same as a table
RUN/track/notes.jsonl     findings, actions, numbers out of their band
RUN/track/about.json      parameters and tags
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from ..run import Run, encode
from ..run.durable import Appender, opener, replace_file
from ..run.jsonl import line, read_lines
from .base import About, Ending, Note, Point

_FIRST = ("step", "time")


class JsonLinesSink:
    """Appends lines; what a killed call left behind its last remembered byte is cut off."""

    kind = "json"
    waiting = False

    def __init__(self, run: Run) -> None:
        self._folder = run.track_folder
        self.target = "metrics.jsonl"
        self._own: dict[str, Any] = {}
        self._lines: Appender | None = None
        self._notes: Appender | None = None
        self._about: dict[str, Any] = {}

    def begin(self, about: About, own: dict[str, Any]) -> None:
        """Open the files where they were left."""
        self._own = own
        self._lines = Appender(self._folder / self.target, keep=own.get("metrics", 0))
        self._notes = Appender(self._folder / "notes.jsonl", keep=own.get("notes", 0))
        self._about = {
            "name": about.name,
            "experiment": about.experiment,
            "params": dict(about.params),
            "tags": dict(about.tags),
        }
        self._write_about()
        self._write_table()

    def write(self, points: Sequence[Point], notes: Sequence[Note]) -> None:
        """Add a line for each; the table is made anew where it gets another column."""
        assert self._lines is not None and self._notes is not None  # begin comes first
        rows = [{"step": p.step, "time": p.time, **p.values} for p in points]
        if rows:
            self._lines.append(b"".join(map(line, rows)))
            self._own["metrics"] = self._lines.size
        if notes:
            reported = [
                {"step": n.step, "time": n.time, "kind": n.kind, "text": n.text} for n in notes
            ]
            self._notes.append(b"".join(map(line, reported)))
            self._own["notes"] = self._notes.size
        if {key for row in rows for key in row} <= set(self._columns):
            path = self._folder / "metrics.csv"
            with open(path, "a", encoding="utf-8", newline="", opener=opener) as file:
                csv.DictWriter(file, self._columns, restval="").writerows(rows)
        else:
            self._write_table()

    def end(self, ending: Ending) -> None:
        """How it ended stands beside what it was."""
        self._about["tags"] |= ending.tags
        self._write_about()

    def close(self) -> None:
        """Let go of the files."""
        for file in (self._lines, self._notes):
            if file is not None:
                file.close()

    def _write_about(self) -> None:
        text = encode(self._about, indent=2) + b"\n"
        replace_file(self._folder / "about.json", text)

    def _write_table(self) -> None:
        rows: list[Mapping[str, Any]] = [*read_lines(self._folder / self.target).objects]
        keys = dict.fromkeys(key for row in rows for key in row)
        self._columns = [*_FIRST, *sorted(key for key in keys if key not in _FIRST)]
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, self._columns, restval="")
        table.writeheader()
        table.writerows(rows)
        replace_file(self._folder / "metrics.csv", text.getvalue().encode())
