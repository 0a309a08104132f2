"""Summary of a crash: the traceback stands right above, and the answer is the last thing said."""

from __future__ import annotations

from collections.abc import Sequence

from ..types import Finding
from . import words
from .cause import cause_of
from .crash import crash_of
from .joined_findings import FindingGroup
from .layout import Line, Span, diff_lines, line, paragraph
from .saved_state import saved_lines
from .summary import RunSummary

_COLUMN = 8
# The whole exception stands right above.
_ERROR = 200


def is_reported_above(summary: RunSummary, group: FindingGroup) -> bool:
    """Whether a finding is the exception that python has printed at the end of this run."""
    ended = summary.ending.line.startswith("crashed with ") and not summary.ranks
    return ended and crash_of(group.finding) is not None


def crash_end_lines(
    summary: RunSummary, crash: FindingGroup, between: Sequence[Line], width: int
) -> list[Line]:
    """What is left of the run and where to look, then why it crashed and what to do.

    Args:
        summary: of the run.
        crash: the finding of the exception.
        between: what else is to be reported.
        width: columns of a paragraph.
    """
    finding, cause = crash.finding, cause_of(crash.finding)
    error = str(finding.evidence.get("error") or "an exception")
    change = f", {summary.loss_change}" if summary.loss_change else ""
    skipped = f", {words.plural(summary.skipped, 'step')} skipped" if summary.skipped else ""
    did = f"; {summary.interventions}" if summary.interventions else ""
    text = f"crashed with {error.partition(':')[0]} after {summary.length}{skipped}{change}{did}."
    lines = paragraph(text, label="holdfast:", width=width, label_style="bold red")
    lines += [*between, *saved_lines(summary.saved_state, width, brief=True)]
    report = summary.page or f"holdfast report {summary.path}"
    lines.append(line("  ", Span("report".ljust(_COLUMN), "dim"), report))
    headline = cause.headline if cause is not None else ""
    why = f"cause: {headline}" if headline else words.clip(error, _ERROR)
    answer = f"{why}{_where(finding, error)}{words.doubt(finding)}"
    lines += paragraph(
        answer, label=finding.code, indent=2, column=_COLUMN, width=width, style="bold",
        label_style="bold red",
    )  # fmt: skip
    lines += paragraph(finding.advice, indent=2, column=_COLUMN, width=width)
    return lines + (diff_lines(cause.diff, indent=2 + _COLUMN) if cause is not None else [])


def _where(finding: Finding, error: str) -> str:
    """What the message has behind the exception: its line, the loader worker and the sample."""
    # A long one is shortened there.
    end = error if error in finding.message else "…"
    return finding.message.partition(end)[2]
