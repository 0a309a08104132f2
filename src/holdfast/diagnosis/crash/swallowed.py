"""Exceptions that a loop catches on every batch, so that its training never steps.

Healthy loops pay one count per batch and per step. Only when several batches came in a row without
a step, gradients on and the model in training mode, exceptions in the user's own code are followed
for a few batches (``sys.settrace``, this thread only). One counts when the ``try`` that caught it
would have gone on to ``backward`` or ``step``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn

from ...records.base import Kind
from ...records.crash import SwallowedException
from ...redaction import redact_text
from ...source.excerpts import place_reported
from ...source.frames import forget_locals, frames_from
from ...source.ownership import kind_of
from ...source.statements import functions_around, statements_around
from ...source.syntax import called
from ..dynamo import hide

# Batches without a step before the trace, batches that it lasts, and when it is tried again. A
# batch or two are skipped on purpose by scripts that drop broken samples. Guesses.
_PATIENCE = 6
_BATCHES = 3
_LATER = 8
# Calls that are followed at most, where the loop ends amid the trace.
_CALLS = 100_000
_TRAINS = ("backward", "step", "manual_backward")


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that passed a line of the user's code."""

    file: str
    line: int
    type: str
    message: str


class SwallowedErrors:
    """Counts batches without a step, and looks for what is caught where there are many.

    Args:
        models: the models behind the optimizers.
        record: writes an Event of the current step.
    """

    def __init__(
        self, models: Callable[[], list[nn.Module]], record: Callable[[Kind], None]
    ) -> None:
        self.batches = 0
        """Batches since the last step; whoever counts them calls ``look`` when it is due."""
        self.due = _PATIENCE
        self._models = models
        self._record = record
        self._seen: list[list[Raised]] | None = None
        self._frames: list[FrameType] = []
        self._calls = 0

    def look(self, frame: FrameType) -> None:
        """The loop has its next batch, and several came without a step."""
        if self._seen is not None:
            self._goes_on()
            return
        self.due = self.batches * _LATER
        trains = torch.is_grad_enabled() and any(model.training for model in self._models())
        if trains and sys.gettrace() is None:
            self._begin(frame)

    def close(self) -> None:
        """The process ends: python would call a trace function until its modules are gone."""
        if self._seen is not None:
            self._end()

    def _begin(self, frame: FrameType) -> None:
        hide(SwallowedErrors._call.__code__, SwallowedErrors._passes.__code__)
        self._seen, self._calls, self.due = [[]], 0, 0
        for at in frames_from(frame):
            if kind_of(at.f_code.co_filename) == "user":
                self._follow(at)
                at.f_trace = self._passes
        sys.settrace(self._call)

    def _goes_on(self) -> None:
        seen = self._seen or []
        if self.batches > 1 and len(seen) < _BATCHES:
            seen.append([])
            return
        self._end()
        self.due = max(_PATIENCE, self.batches) * _LATER
        swallowed = [found for each in seen if (found := jumped(each)) is not None]
        # On every batch, and each time from the same line.
        if (
            len(swallowed) == len(seen) == _BATCHES
            and len({(f.file, f.line) for f in swallowed}) == 1
        ):
            last = swallowed[-1]
            self.due = sys.maxsize
            found = SwallowedException(
                **place_reported(last.file, last.line),
                type=last.type,
                message=redact_text(last.message[:4000])[:400],
                batches=self.batches - 1,
            )
            self._record(found)

    def _end(self) -> None:
        if sys.gettrace() == self._call:
            sys.settrace(None)
        for frame in self._frames:
            frame.f_trace = None
            frame.f_trace_lines = True
            forget_locals(frame)
        self._frames, self._seen = [], None

    def _follow(self, frame: FrameType) -> None:
        frame.f_trace_lines = False
        if len(self._frames) < 256:
            self._frames.append(frame)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._calls += 1
        if self._calls > _CALLS:  # the loop is over, and something else goes on
            sys.settrace(None)
        if kind_of(frame.f_code.co_filename) != "user":
            return None
        frame.f_trace_lines = False
        return self._passes

    def _passes(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "exception" and self._seen and len(self._seen[-1]) < 64:
            kind, value = argument[0], argument[1]
            if not issubclass(kind, StopIteration | GeneratorExit | StopAsyncIteration):
                file, line = frame.f_code.co_filename, frame.f_lineno
                self._seen[-1].append(Raised(file, line, kind.__name__, _said(value)))
        return self._passes


def _said(value: object) -> str:
    try:
        return str(value)
    except Exception:  # the user's own code
        return ""


def jumped(passed: list[Raised]) -> Raised | None:
    """The innermost line of an exception that was caught where training would have gone on.

    Args:
        passed: the lines that exceptions passed, each from its innermost call outwards.
    """
    trains = False
    first: Raised | None = None
    for at in passed:
        if first is None or (at.type, at.message) != (first.type, first.message):
            first, trains = at, False
        caught, inside = _around(at)
        trains = trains or inside
        if caught and trains:
            return first
    return None


def _around(at: Raised) -> tuple[bool, bool]:
    """Whether a ``try`` is around a line, and whether its code from there on trains.

    Without a ``try`` the rest of the function counts: the exception leaves it.
    """
    tries = [
        found.node
        for found in statements_around(at.file, at.line)
        if isinstance(found.node, ast.Try)
        and found.node.handlers
        and found.node.body[0].lineno <= at.line <= (found.node.body[-1].end_lineno or 0)
    ]
    functions = functions_around(at.file, at.line)
    if tries and functions and functions[-1].lineno > tries[-1].lineno:
        tries = []  # the function stands inside of the try, its line does not run there
    scope: list[ast.stmt] = tries[-1].body if tries else functions[-1].body if functions else []
    trains = any(
        isinstance(part, ast.Call) and called(part) in _TRAINS and part.lineno >= at.line
        for statement in scope
        for part in ast.walk(statement)
    )
    return bool(tries), trains
