"""Reports of a run as text, JSON, HTML, Markdown and live lines.

Pure functions of what was recorded.

>>> import tempfile
>>> from holdfast.run import Run
>>> run = Run.create(tempfile.mkdtemp(), {"script": "train.py"})
>>> summarize(run).outcome
'unfinished'
>>> report_md(run).splitlines()[0]
'# Unfinished: `train.py`'
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..harmless import visible_line
from ..run import Run
from ..run.durable import replace_file
from .code_places import repository
from .explain import catalogue_lines, explain_lines, found_lines
from .github import github_text
from .html import card, page
from .joined_findings import FindingGroup
from .json import check_json, report_json
from .layout import (
    WIDTH,
    Line,
    painted,
    plain,
    shown,
)
from .markdown import markdown
from .record import RunRecord, read_record
from .replay import ReplayedRun, check_lines, replay
from .sarif import sarif_text
from .saved_state import saved_lines
from .summary import RunSummary, summarize
from .terminal import Terminal
from .text import end_lines, finding_lines, report_lines


def end_summary(run: Run | RunRecord, terminal: Terminal | None = None) -> str:
    """Summary printed at the end of ``holdfast run``: outcome, findings, where to look."""
    record = read_record(run) if isinstance(run, Run) else run
    terminal = terminal or Terminal()
    return shown(end_lines(record.summary, terminal.width), terminal)


def saved_words(run: Run, *, width: int = WIDTH) -> str:
    """What a run that ended early has saved, and how to load it; empty when nothing."""
    return plain(saved_lines(summarize(run).saved_state, width)).rstrip()


def report_html(run: Run | RunRecord) -> str:
    """HTML report; of a damaged run, the readable part."""
    return page(read_record(run) if isinstance(run, Run) else run)


def card_html(run: Run | None) -> str:
    """Card of a run for a notebook, whole in itself; of one that has not begun, too."""
    return card(None if run is None else read_record(run).summary)


def report_md(run: Run | RunRecord) -> str:
    """Markdown report, for an issue; of a damaged run, the readable part."""
    return markdown(read_record(run) if isinstance(run, Run) else run)


def write_page(run: Run, record: RunRecord | None = None) -> Path:
    """Write the HTML page into the run folder, atomically; may raise ``OSError``."""
    replace_file(run.page_path, report_html(record or run).encode())
    return run.page_path


def make_page(run: Run, say: Callable[[str], None]) -> None:
    """``write_page`` at the end of a run: a failure prints one line and raises nothing."""
    try:
        write_page(run)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        say(f"holdfast: could not write {run.page_path.name}: {visible_line(reason)}")


__all__ = [
    "WIDTH",
    "FindingGroup",
    "Line",
    "ReplayedRun",
    "RunRecord",
    "RunSummary",
    "Terminal",
    "card_html",
    "catalogue_lines",
    "check_json",
    "check_lines",
    "end_lines",
    "end_summary",
    "explain_lines",
    "finding_lines",
    "found_lines",
    "github_text",
    "make_page",
    "painted",
    "plain",
    "read_record",
    "replay",
    "report_html",
    "report_json",
    "report_lines",
    "report_md",
    "repository",
    "sarif_text",
    "saved_words",
    "shown",
    "summarize",
    "write_page",
]
