"""Facts of an exception in a loader worker, taken there and carried to the main process.

torch sends the text of the traceback alone. The object that carries it is pickled with its
attributes, so the facts travel as one more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...records.crash import RaisedException
from .traceback_frames import TracebackEntry

ATTRIBUTE = "_holdfast_facts"


def carry(wrapper: Any, facts: RaisedException) -> None:
    """Attach the facts to what torch sends; the traceback is in its text anyway."""
    setattr(wrapper, ATTRIBUTE, facts.replace(traceback=None))


def noted(calls: Sequence[TracebackEntry]) -> RaisedException | None:
    """The facts from the worker whose error these calls raise again; None for any other."""
    for call in reversed(calls):
        if call.function == "reraise":
            found = getattr(call.frame.f_locals.get("self"), ATTRIBUTE, None)
            if isinstance(found, RaisedException):
                return found
    return None
