"""Work of ours while lines of the script are followed (``sys.settrace``)."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

_OURS = __name__.partition(".")[0] + "."


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Follow no calls in between: a trace of ours is told of each, and of ours there are thousands.

    A debugger and a coverage tool go on.
    """
    trace = sys.gettrace()
    if trace is None or not str(getattr(trace, "__module__", "")).startswith(_OURS):
        yield
        return
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(trace)
