"""A first Ctrl-C passes over the workers of loaders: the step at work needs them to its end.

A terminal sends it to the whole process group. The process that trains saves its state then, and
ends its workers when it ends. A second one is what it is under plain python.
"""

from __future__ import annotations

import signal
import threading
import time
from types import CodeType, FrameType
from typing import Any

_ONE_REQUEST = 1.0
"""Seconds within which a second signal is the same request: `timeout` sends two."""
_CATCHES = {"KeyboardInterrupt", "BaseException"}


def pass_over_the_first(*parts: Any) -> None:
    """In a worker: pass over one Ctrl-C, unless its code or that of the script handles it.

    Args:
        parts: the dataset, and functions that the worker calls.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    inner = [one for part in parts for one in getattr(part, "__dict__", {}).values()]
    if any(map(_catches, [*parts, *inner])):
        return
    came = 0.0

    def interrupted(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = came or time.monotonic()
        if time.monotonic() - came > _ONE_REQUEST:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, interrupted)


def _catches(part: Any) -> bool:
    """Whether a function, or a method of an object, names what Ctrl-C raises."""
    held = [part, *(one for kind in type(part).__mro__ for one in vars(kind).values())]
    codes = [code for one in held if isinstance(code := getattr(one, "__code__", None), CodeType)]
    while codes:
        code = codes.pop()
        if not _CATCHES.isdisjoint(code.co_names):
            return True
        codes += [one for one in code.co_consts if isinstance(one, CodeType)]
    return False
