"""Waits for the head of the training loop where no loader says when a round is over.

Between two rounds nothing is half done: the body is over, and the variables fit the weights. The
head is heard of by a trace on the one frame that the loop is in, for one round and only when a
checkpoint is due or the process is asked to end.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from .. import source
from ..source.frames import forget_locals, frames_from, user_frames
from ..source.syntax import LOOPS
from .frames import scope_line
from .refusal import RefusedError

_OURS = __name__.partition(".")[0] + "."
Key = list[Any]
"""File, function and line of the head of a loop."""


class Heads:
    """The trace, on at most one frame.

    Args:
        arrived: called at the head with its frame; False to be called in the next round again.
    """

    def __init__(self, arrived: Callable[[FrameType, Key], bool]) -> None:
        self._arrived = arrived
        self._frame: FrameType | None = None
        self._loop: tuple[Key, ast.stmt] | None = None
        self._copied = 0
        """The frame whose variables were looked at within the trace, by its id."""

    def wait(self, frame: FrameType | None, key: Key | None) -> bool:
        """Wait for the head of the innermost loop around, or of one; False where it is not."""
        if self._frame is not None:
            return True
        for one in user_frames(frame):
            loop = _loop_of(one, key)
            if loop is None:
                continue
            trace = sys.gettrace()
            if trace is not None:
                if str(getattr(trace, "__module__", "")).startswith(_OURS):
                    return True  # it is gone after some steps
                raise RefusedError("a debugger or a coverage tool traces the script")
            self._frame, self._loop = one, loop
            sys.settrace(_enter)
            one.f_trace, one.f_trace_lines = self._traced, True
            return True
        return False

    def stop(self) -> None:
        """Wait no longer."""
        frame, self._frame = self._frame, None
        if frame is not None:
            if sys.gettrace() is _enter:
                sys.settrace(None)
            frame.f_trace = None

    def tidy(self, frame: FrameType | None) -> None:
        """Outside of a trace: let go what a look at variables has left in a frame."""
        for one in frames_from(frame):
            if id(one) == self._copied:
                forget_locals(one)
        self._copied = 0

    def _traced(self, frame: FrameType, event: str, about: object) -> Any:
        if frame is not self._frame or self._loop is None:
            return None
        if event == "return":
            self.stop()
            return None
        key, loop = self._loop
        if event == "line" and _at_head(loop, frame.f_lineno):
            again = False
            try:
                again = not self._arrived(frame, key)
            finally:
                # Python writes this copy back when the trace returns: it must be what is.
                _ = frame.f_locals
                self._copied = id(frame)
                if not again:
                    self.stop()
            return self._traced if again else None
        return self._traced


def _enter(frame: FrameType, event: str, about: object) -> None:
    """Of a function that is called meanwhile: it is not followed."""


def _loop_of(frame: FrameType, key: Key | None) -> tuple[Key, ast.stmt] | None:
    code = frame.f_code
    # A head that asks a loader for its next batch is at work before its body is.
    head = 0 if key is None else key[2]
    around = source.blocks_around(code.co_filename, scope_line(frame), frame.f_lineno, head)
    for loop in reversed([one for one in around if isinstance(one, LOOPS)]):
        found: Key = [os.path.basename(code.co_filename), code.co_qualname, loop.lineno]
        if key is None or found == key:
            return found, loop
    return None


def _at_head(loop: ast.stmt, line: int) -> bool:
    assert isinstance(loop, LOOPS)
    if loop.lineno <= line < loop.body[0].lineno:
        return True
    # `while True` has no test to come to.
    endless = isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant)
    return endless and line == loop.body[0].lineno
