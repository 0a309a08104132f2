"""Findings as annotations of a GitHub workflow: each marks its line in the pull request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..harmless import visible
from ..types import Finding, Severity
from .code_places import place_of
from .ending import RunEnding
from .words import NBSP, shortened

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def github_text(
    findings: Sequence[Finding], ending: RunEnding, meta: Mapping[str, Any], root: Path
) -> str:
    """One workflow command for each finding, and one for a run that died without any.

    >>> github_text([], RunEnding(word="finished", line="finished"), {}, Path())
    '::notice title=holdfast::finished, no findings\\n'
    """
    lines = [_annotation(finding, meta, root) for finding in findings]
    if not findings:
        level = "error" if ending.died else "notice"
        lines = [_command(level, {"title": "holdfast"}, f"{ending.line}, no findings")]
    return "".join(f"{line}\n" for line in lines)


def _annotation(finding: Finding, meta: Mapping[str, Any], root: Path) -> str:
    file, line = place_of(finding, meta, root)
    about = {"file": file, "line": str(line) if line else ""}
    about["title"] = f"{finding.code} {finding.name.replace('_', ' ')}"
    reported = f"{shortened(finding.message)}\n{shortened(finding.advice)}"
    text = f"{reported}\nMore: holdfast explain {finding.code}"
    return _command(_LEVELS[finding.severity], about, text)


def _command(level: str, about: Mapping[str, str], text: str) -> str:
    given = ",".join(f"{key}={_property(value)}" for key, value in about.items() if value)
    return f"::{level} {given}::{_data(text)}"


def _data(text: str) -> str:
    text = visible(text).replace(NBSP, " ").replace("%", "%25")
    return text.replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(shortened(text)).replace(":", "%3A").replace(",", "%2C")
