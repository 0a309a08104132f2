"""A run, told: as text, as JSON, as live lines. Pure functions of what was recorded.

>>> import tempfile
>>> from holdfast.run import Run
>>> run = Run.create(tempfile.mkdtemp(), {"script": "train.py"})
>>> summarize(run).outcome
'unfinished'
"""

from __future__ import annotations

from ..run import Run
from .explain import catalogue_lines, explain_lines
from .json import findings_json, report_json
from .layout import WIDTH, Line, painted, plain
from .replay import Replay, check_lines, replay
from .sightings import Sighting
from .summary import RunSummary, summarize
from .text import end_lines, finding_lines, report_lines


def end_summary(run: Run, *, color: bool = False, width: int = WIDTH) -> str:
    """The few lines at the end of ``holdfast run``: how it went, what was found, where to look."""
    lines = end_lines(summarize(run), width)
    return painted(lines) if color else plain(lines)


__all__ = [
    "WIDTH",
    "Line",
    "Replay",
    "RunSummary",
    "Sighting",
    "catalogue_lines",
    "check_lines",
    "end_lines",
    "end_summary",
    "explain_lines",
    "finding_lines",
    "findings_json",
    "painted",
    "plain",
    "replay",
    "report_json",
    "report_lines",
    "summarize",
]
