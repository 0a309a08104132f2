"""Where a finding stands in the user's repository, for programs that mark lines of code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ..types import Finding


def place_of(finding: Finding, meta: Mapping[str, Any], root: Path) -> tuple[str, int]:
    """File and line of a finding; of one without a line, the script, and 0.

    Args:
        finding: what was found.
        meta: of the run.
        root: the repository; a file below it is named from there.
    """
    if finding.file:
        return _below(finding.file, root), max(0, finding.line)
    command: Any = meta.get("command")
    words = cast("list[Any]", command) if isinstance(command, list) else []
    script = str(words[0]) if words else ""
    return (_below(script, root), 0) if script.endswith(".py") else ("", 0)


def repository() -> Path:
    """The folder that paths are reported from: the workspace of a workflow, else where we are."""
    return Path(os.environ.get("GITHUB_WORKSPACE") or os.getcwd())


def _below(file: str, root: Path) -> str:
    try:
        return Path(os.path.abspath(file)).relative_to(root.absolute()).as_posix()
    except ValueError:
        return Path(file).as_posix()
