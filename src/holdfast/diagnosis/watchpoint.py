"""A watchpoint: which line of the user's code changes a value.

For a few steps every line of the user's own files is followed (``sys.settrace``, this thread
only), and after each one the watched values are looked at. A line that is executed many times
costs about a microsecond each time, so this is ordered rarely and ends by itself. It does not
begin where somebody else traces already: a debugger, a coverage tool.

    watch = Watchpoint([probe, ...])
    watch.start(frame) -> bool       # False where tracing is taken: try again later
    watch.stop()
    watch.changes                    # {index of the probe: ValueChange}

Anything with a ``token(frame)`` method can be watched: the token of a value must differ when the
value has changed. ``frame`` is the user's frame that has just executed a line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from types import FrameType
from typing import Any, Protocol

from torch import nn

from ..source.frames import forget_locals, frames_from
from ..source.ownership import kind_of
from .dynamo import hide

_MODEL = nn.Module._wrapped_call_impl.__code__


class Probe(Protocol):
    """Something that is looked at after each line."""

    def token(self, frame: FrameType) -> Any:
        """Differs from the last one when the value has changed."""


@dataclass(slots=True)
class ValueChange:
    """A line that changed a watched value."""

    file: str
    line: int
    function: str
    count: int = 1
    calls: tuple[tuple[str, int, str], ...] = ()
    """File, line and function of the user's calls that led there, innermost first: from the line,
    or, where it is inside of a model, from the one that called the outermost model."""
    model: bool = False
    """A model was called at the line, or it is inside of one."""
    more: int = 0
    """By how much the line moved the value in all, where its token is a number."""


class Watchpoint:
    """Follows the lines of this thread between ``start`` and ``stop``.

    Args:
        probes: what is watched.
        seconds: after so much time under trace it stops by itself.
    """

    def __init__(self, probes: Sequence[Probe], seconds: float = 1.0) -> None:
        self.changes: dict[int, list[ValueChange]] = {}
        """For each probe the lines that changed it, in the order they were first seen."""
        self.active = False
        self.began = False
        """It was possible to start."""
        self._probes = list(probes)
        self._seconds = seconds
        self._until = 0.0
        self._tokens: list[Any] = []
        self._traced: list[FrameType] = []
        self._at: tuple[FrameType, int] | None = None
        self._events = 0
        self._called = False
        """A module was called since the last look."""

    def start(self, frame: FrameType) -> bool:
        """Begin with a frame and all its callers; False where somebody else traces."""
        if sys.gettrace() is not None:
            return False
        hide(Watchpoint._call.__code__, Watchpoint._line.__code__)
        self._until = perf_counter() + self._seconds
        inner = None
        for at in frames_from(frame):
            if kind_of(at.f_code.co_filename) == "user":
                at.f_trace = self._line
                self._traced.append(at)
                inner = inner or at
        # Where a library runs the loop, the user's functions are yet to be called.
        self._tokens = [probe.token(inner or frame) for probe in self._probes]
        # The line that is being executed belongs to what happens next, until another begins.
        self._at = (inner, inner.f_lineno) if inner is not None else None
        self.active = self.began = True
        sys.settrace(self._call)
        return True

    def pause(self) -> None:
        """End the tracing, keep what was seen; ``stop`` must still be called."""
        if self.active:
            self.active = False
            # Compared by equality: each access makes another bound method.
            if sys.gettrace() == self._call:
                sys.settrace(None)

    def stop(self) -> None:
        """End, and let go of everything."""
        self.pause()
        for at in self._traced:
            if at.f_trace == self._line:
                at.f_trace = None
            forget_locals(at)
        self._traced.clear()
        self._probes.clear()
        self._at = None

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        if not self.active or kind_of(frame.f_code.co_filename) != "user":
            self._called = self._called or frame.f_code is _MODEL
            return None
        self._look(frame)
        self._at = frame, frame.f_lineno
        return self._line

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if not self.active:
            return None
        self._look(frame)
        if event == "return":
            back = frame.f_back
            while back is not None and kind_of(back.f_code.co_filename) != "user":
                back = back.f_back
            self._at = (back, back.f_lineno) if back is not None else None
        else:
            self._at = frame, frame.f_lineno
        return self._line

    def _look(self, frame: FrameType) -> None:
        self._events += 1
        if self._events % 256 == 0 and perf_counter() > self._until:
            self.pause()
            return
        for i, probe in enumerate(self._probes):
            try:
                token = probe.token(self._at[0] if self._at is not None else frame)
            except Exception:  # an object of the user's that cannot be looked at just now
                continue
            if token != (last := self._tokens[i]):
                self._tokens[i] = token
                if self._at is not None:
                    more = token - last if isinstance(token, int) else 0
                    self._note(i, *self._at, more)
        self._called = False

    def _note(self, probe: int, frame: FrameType, line: int, more: int) -> None:
        code = frame.f_code
        known = self.changes.setdefault(probe, [])
        for change in known:
            if (change.file, change.line) == (code.co_filename, line):
                change.count += 1
                change.more += more
                change.model |= self._called
                return
        calls, inside = _calls(frame, line)
        model = self._called or inside
        change = ValueChange(code.co_filename, line, code.co_name, 1, calls, model, more)
        known.append(change)


def _calls(frame: FrameType, line: int) -> tuple[tuple[tuple[str, int, str], ...], bool]:
    """The user's lines at work, without those inside of a called model; whether there is one."""
    found, inside = [(frame.f_code.co_filename, line, frame.f_code.co_name)], False
    model = False
    for at in frames_from(frame.f_back):
        file = at.f_code.co_filename
        if at.f_code.co_name == "_wrapped_call_impl" and file.endswith("module.py"):
            inside = model = True
        elif kind_of(file) == "user":
            if inside:
                found.clear()
            found.append((file, at.f_lineno, at.f_code.co_name))
            inside = False
    return tuple(found), model
