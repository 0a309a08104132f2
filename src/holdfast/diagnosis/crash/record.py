"""Write the exception that ended a script into its run: an Event, and its traceback as a file."""

from __future__ import annotations

from ...records.crash import RaisedException
from ...run import Recorder


def ends_the_run(error: object) -> bool:
    """Whether an error is worth a record of its own, also where nothing else was recorded.

    A launcher whose children failed only says so; they have records of their own.
    """
    return isinstance(error, Exception) and type(error).__name__ != "ChildFailedError"


def record(recorder: Recorder, step: int, facts: RaisedException) -> None:
    """Write both."""
    recorder.event(step, facts)
    recorder.run.write_traceback(recorder.lane, facts.traceback or "")
