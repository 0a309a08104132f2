"""Describe the exception that ended the script: type, message, the user's line."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from types import TracebackType
from typing import Any

from ...redaction import redact_text

_LONGEST = 2000


def facts(error: BaseException) -> dict[str, Any]:
    """What an Event says of it."""
    file, line = user_line(error.__traceback__)
    return {
        "type": type(error).__name__,
        "message": redact_text(str(error)[:_LONGEST]),
        "file": file,
        "line": line,
    }


def user_line(traceback: TracebackType | None) -> tuple[str, int]:
    """The innermost line of the user's own code in a traceback."""
    found = ("", 0)
    libraries = {
        sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    libraries.add(str(Path(__file__).parents[2]))
    prefixes = tuple(os.path.join(library, "") for library in libraries)
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not file.startswith(("<", *prefixes)):
            found = (file, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found
