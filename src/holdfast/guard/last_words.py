"""What is known of an exception that ends a run, as plain data: no frame is held alive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..diagnosis.crash.traceback_frames import chain
from ..diagnosis.crash.traceback_text import text_of
from ..records.base import Kind, event_from
from ..records.crash import LeftLoop, RaisedException
from ..run import Recorder
from ..types import Event


@dataclass(frozen=True, slots=True)
class LastWords:
    """The records of an exception: itself, and what the watchers say of it."""

    raised: RaisedException
    records: tuple[tuple[int, Kind], ...]
    """Each with the step it belongs to, the exception first."""
    _identity: tuple[int, str]

    @classmethod
    def of(
        cls,
        error: BaseException,
        step: int,
        raised: RaisedException,
        others: Iterable[tuple[int, Kind]],
    ) -> LastWords:
        """Put together what was measured."""
        return cls(raised, ((step, raised), *others), _identity(error))

    @property
    def left(self) -> LeftLoop:
        """The exception in short, for a loop that it has left."""
        raised = self.raised
        return LeftLoop(
            type=raised.type, message=raised.message, file=raised.file, line=raised.line
        )

    @property
    def traceback(self) -> str:
        """As python prints it, without our own calls."""
        return self.raised.traceback or ""

    def is_of(self, error: BaseException | None) -> bool:
        """Whether this is the exception, or one that led to it."""
        return error is not None and any(_identity(e) == self._identity for e in chain(error))

    def completed(self, error: BaseException) -> LastWords:
        """With the whole traceback, once the exception has come all the way out."""
        (step, _), *others = self.records
        raised = self.raised.replace(traceback=text_of(error))
        return replace(self, raised=raised, records=((step, raised), *others))

    def of_rank(self, rank: int) -> Sequence[Event]:
        """As Events in the lane of a rank."""
        return [event_from(step, record, rank) for step, record in self.records]

    def write(self, recorder: Recorder) -> None:
        """Into the ring of the training, and the traceback into its file."""
        for step, record in self.records:
            recorder.event(step, record)
        recorder.run.write_traceback(recorder.lane, self.traceback)


def _identity(error: BaseException) -> tuple[int, str]:
    # An id alone may be that of another object, when the first one is gone.
    try:
        return id(error), f"{type(error).__name__}: {error}"
    except Exception:  # the user's own code
        return id(error), type(error).__name__
