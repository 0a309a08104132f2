"""Work of ours that passes thousands of objects and calls, between two lines of the script."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

_OURS = __name__.partition(".")[0] + "."


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Neither a trace of ours nor the collector follows what is done in between.

    A trace is told of every call (a debugger and a coverage tool go on). What is made here and gone
    when it ends would count as objects that have lived long, and these order the next collection of
    everything there is: with torch loaded that takes a tenth of a second, in a line of the script.
    """
    trace, collects = sys.gettrace(), gc.isenabled()
    ours = str(getattr(trace, "__module__", "")).startswith(_OURS)
    if ours:
        sys.settrace(None)
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        if ours:
            sys.settrace(trace)
