"""What a run died of, where that was memory, and where; state that was not detached."""

from __future__ import annotations

import re
import sys
from types import TracebackType
from typing import Any

import torch

from ..exams._growers import habits
from ..exams._place import kind_of, place_told
from ..exams.census import Held
from . import needs

_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory", re.I)
# What oneDNN says when it gets no memory, and otherwise too; bytes that are next to none.
_NO_REASON = re.compile(r"could not (create|execute) a (primitive|memory)")
_FULL = 256 << 20
_SECOND_TIME = ("through the graph a second time", "modified by an inplace operation")


def error() -> BaseException | None:
    """The error that ends the script, if one does."""
    found = getattr(sys, "last_value", None)
    return found if isinstance(found, BaseException) else None


def ran_out(found: BaseException | None) -> bool:
    """Whether it is one of memory."""
    if isinstance(found, torch.OutOfMemoryError | MemoryError):
        return True
    if not isinstance(found, RuntimeError):
        return False
    said = str(found)
    return bool(_MEMORY.search(said) or (_NO_REASON.search(said) and needs.room() < _FULL))


def second_time(found: BaseException | None) -> bool:
    """Whether backward met a graph of an earlier step."""
    return isinstance(found, RuntimeError) and any(w in str(found) for w in _SECOND_TIME)


def carried(held: Held, age: int) -> dict[str, Any]:
    """The facts of a state that was still on the graph of an earlier step when the run died."""
    file = held.file
    known = habits(file, held.name, held.function)
    lines = known.assigned or known.grows
    return {
        "age": age,
        "steps": age,
        "killed": True,
        "path": held.path,
        "name": held.name,
        "how": held.how,
        "seen": "source" if len(lines) == 1 else "guess",
        **place_told(file, lines[0] if lines else 0),
    }


def place(traceback: TracebackType | None) -> dict[str, Any]:
    """The innermost line of the user's own code."""
    file, line = "", 0
    while traceback is not None:
        if kind_of(traceback.tb_frame.f_code.co_filename) == "user":
            file, line = traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
        traceback = traceback.tb_next
    return place_told(file, line)
