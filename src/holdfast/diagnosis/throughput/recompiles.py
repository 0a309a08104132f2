"""Compilations of ``torch.compile`` that came again: the guard that failed, the line that called.

Asks dynamo to be told when it compiles; costs nothing on a step without one.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...records.times import Recompiled
from ...source.excerpts import excerpt_at
from ...source.files import lines_of
from ...source.growth import habits
from ...source.ownership import kind_of
from ...source.paths import from_here
from ...source.statements import text_at
from .profiles import Spot, line_of

_NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")
_ATTRIBUTE = re.compile(r"^(?:G\['(?P<root>\w+)'\])?.*\.(?P<name>\w+) == ")
_ENTRY = re.compile(r"^\s*\d+/\d+:\s*")

_OURS = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


@dataclass(slots=True)
class CompiledFunction:
    """What became of one function that was compiled."""

    name: str = ""
    file: str = ""
    line: int = 0
    """What changes the attribute that a guard asks for; else where it was called when it was
    compiled last."""
    defined: str = ""
    times: int = 0
    """Compilations after the first."""
    seconds: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter[str])
    """Guards that failed, without their numbers."""
    reason: str = ""
    """The last one, in full."""

    def measured(self, trained: float) -> Recompiled:
        """What an Event says of it; ``trained``: seconds of the steps so far."""
        return Recompiled(
            file=from_here(self.file),
            line=self.line,
            code=text_at(self.file, self.line).text[:160] if self.line else "",
            excerpt=excerpt_at(self.file, self.line).lines if self.line else (),
            name=self.name,
            defined=self.defined,
            times=self.times,
            same=max(self.reasons.values(), default=0),
            seconds=round(self.seconds, 3),
            guard=self.reason,
            trained=round(trained, 3),
        )


class Recompiles:
    """All compilations of the process."""

    def __init__(self) -> None:
        self.functions: dict[str, CompiledFunction] = {}
        self.news = False
        self.attached = False
        self._seen: set[str] = set()
        self._place: Spot = ("", 0)

    def attach(self) -> None:
        """Be told from now on."""
        self.attached = True
        from torch._dynamo.callback import callback_handler

        callback_handler.register_start_callback(self._starts)
        self.news = True

    def _starts(self, *about: Any) -> None:
        self.news = True
        trigger = str(getattr(about[0], "callback_trigger", "")) if about else ""
        place = line_of(sys._getframe())
        # The backward pass is compiled later, when it is first needed: not where it is called.
        if place[1] and "BACKWARD" not in trigger:
            self._place = place

    def look(self) -> list[CompiledFunction]:
        """Functions that were compiled again since the last look."""
        self.news = False
        from torch._dynamo import utils

        changed: list[CompiledFunction] = []
        ask: Callable[[], list[Any]] = utils.get_compilation_metrics
        for metric in ask():
            name = str(getattr(metric, "compile_id", "") or "")
            if not name or name in self._seen:
                continue
            self._seen.add(name)
            if (metric.co_filename or "").startswith(_OURS):
                continue
            frame = name.split("/")[0]
            known = self.functions.setdefault(frame, CompiledFunction())
            known.name = str(metric.co_name or known.name)
            known.defined = f"{from_here(metric.co_filename or '')}:{metric.co_firstlineno or 0}"
            reason = str(getattr(metric, "recompile_reason", None) or "")
            if name.split("/")[-1].startswith("0") and not reason:
                continue
            known.times += 1
            known.seconds += float(metric.entire_frame_compile_time_s or 0.0)
            if self._place[1]:
                known.file, known.line = self._place
            if reason:
                known.reason = _guard(reason)
                known.reasons.update({_NUMBER.sub("#", known.reason): 1})
                files = {known.file: 0, str(metric.co_filename): int(metric.co_firstlineno or 0)}
                known.file, known.line = _changes(known.reason, files) or (known.file, known.line)
            changed.append(known)
        return changed


def _changes(guard: str, files: dict[str, int]) -> Spot | None:
    """The user's line that gives the attribute in a guard another value.

    Args:
        guard: ``self.epoch == 3``, ``G['metric']._count == 7``.
        files: that of the caller, and that of the compiled function with its first line.
    """
    found = _ATTRIBUTE.search(guard)
    if found is None:
        return None
    root, name = found["root"] or "", found["name"]
    for file in files:
        known = habits(file, name)
        if kind_of(file) == "user" and (lines := known.assigned or known.grows):
            return file, lines[0]
    for file, first in files.items():
        if root and first and kind_of(file) == "user":
            # A library does it: the line that calls it.
            for at, text in enumerate(lines_of(file)[first:], first + 1):
                if re.search(rf"\b{root}\.\w+\(", text):
                    return file, at
    return None


def _guard(reason: str) -> str:
    """The first guard in dynamo's words, without the comments around it."""
    first = _ENTRY.sub("", reason.strip().splitlines()[0])
    return " ".join(first.split(" # ")[0].split())[:160]
