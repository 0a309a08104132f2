"""Patch for crashes: what a loader worker held when its code raised."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any

from ..diagnosis.crash import exception, worker_error
from ._patch import Function, GetEngine, Patch


def _wrapped(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def __init__(self: Any, exc_info: Any = None, *args: Any, **kwargs: Any) -> None:
        original(self, exc_info, *args, **kwargs)
        error = (exc_info or sys.exc_info())[1]
        if error is not None and engine_of() is not None:
            with contextlib.suppress(Exception):
                worker_error.carry(self, exception.facts(error))

    return __init__


PATCHES = (
    Patch(
        target="torch._utils.ExceptionWrapper.__init__",
        why="an exception of a loader worker reaches the main process as a text; its line, its "
        "sample and its shapes are taken in the worker and travel with it",
        make=_wrapped,
    ),
)
