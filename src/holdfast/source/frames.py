"""The user's code at work: its frames on the stack, the line each is at, and their variables."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from .ownership import kind_of

_COPIES = sys.version_info < (3, 13)
"""Whether ``f_locals`` of a function is a copy that stays."""


def frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def user_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Those of the user's own code, innermost first."""
    return (at for at in frames_from(frame) if kind_of(at.f_code.co_filename) == "user")


def user_line(frame: FrameType | None) -> tuple[str, int] | None:
    """File and line of the innermost one; None where there is none."""
    return next(((at.f_code.co_filename, at.f_lineno) for at in user_frames(frame)), None)


def forget_locals(frame: FrameType) -> None:
    """Drop the copy of a function's variables that looking at ``f_locals`` has left behind.

    Before Python 3.13 it stays with the frame and keeps tensors alive that the function has long
    let go. Never to be called from within a trace function: there the copy is written back.
    """
    if not _COPIES or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return
    copy = frame.f_locals
    # The frame's own, ours, and the one of the question: whoever else has it got it by locals().
    if sys.getrefcount(copy) <= 3:
        copy.clear()


def variable_of(frame: FrameType, name: str) -> Any:
    """One variable, with nothing left behind: each look at ``f_locals`` copies them all."""
    copy = frame.f_locals
    value = copy.get(name)
    optimized = _COPIES and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if optimized and sys.getrefcount(copy) <= 3:
        copy.clear()
    return value
