"""What is known of an exception that ends a run, as plain data: no frame is held alive."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..diagnosis.crash.traceback_frames import chain
from ..diagnosis.crash.traceback_text import text_of
from ..run import Recorder
from ..types import Event

EXCEPTION = "exception"


@dataclass(frozen=True, slots=True)
class LastWords:
    """The Events of an exception: itself, and what the watchers say of it."""

    events: tuple[Event, ...]
    _identity: tuple[int, str]

    @classmethod
    def of(
        cls,
        error: BaseException,
        step: int,
        facts: Mapping[str, Any],
        others: Iterable[tuple[str, int, Mapping[str, Any]]],
    ) -> LastWords:
        """Put together what was measured."""
        told = [(EXCEPTION, step, facts), *others]
        now = time.time()
        events = (
            Event(time=now, rank=0, step=at, kind=kind, data=dict(data)) for kind, at, data in told
        )
        return cls(tuple(events), _identity(error))

    @property
    def place(self) -> Mapping[str, Any]:
        """The exception in short: its class, its message and the user's line."""
        facts = self.events[0].data
        return {name: facts[name] for name in ("type", "message", "file", "line")}

    @property
    def traceback(self) -> str:
        """As python prints it, without our own calls."""
        return str(self.events[0].data.get("traceback") or "")

    def is_of(self, error: BaseException | None) -> bool:
        """Whether this is the exception, or one that led to it."""
        return error is not None and any(_identity(e) == self._identity for e in chain(error))

    def completed(self, error: BaseException) -> LastWords:
        """With the whole traceback, once the exception has come all the way out."""
        first, *others = self.events
        data = {**first.data, "traceback": text_of(error)}
        return replace(self, events=(replace(first, data=data), *others))

    def of_rank(self, rank: int) -> Sequence[Event]:
        """The Events, in the lane of a rank."""
        return [replace(event, rank=rank) for event in self.events]

    def write(self, recorder: Recorder) -> None:
        """Into the ring of the training, and the traceback into its file."""
        for event in self.events:
            recorder.event(event.kind, event.step, event.data)
        recorder.run.write_traceback(recorder.lane, self.traceback)


def _identity(error: BaseException) -> tuple[int, str]:
    # An id alone may be that of another object, when the first one is gone.
    try:
        return id(error), f"{type(error).__name__}: {error}"
    except Exception:  # the user's own code
        return id(error), type(error).__name__
