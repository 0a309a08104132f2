"""Inspect a dataset without using it."""

from __future__ import annotations

import contextlib
import inspect
from collections import deque
from types import GeneratorType
from typing import Any

from .memory.holders import CACHED
from .source.place import kind_of


def caches_of(dataset: Any) -> list[Any]:
    """Cached methods of the dataset's own classes."""
    kinds = [kind for kind in type(dataset).__mro__ if kind_of(_source(kind)) == "user"]
    return [value for kind in kinds for value in vars(kind).values() if type(value) is CACHED]


def lengths(stream: GeneratorType[Any, Any, Any]) -> dict[str, int]:
    """How long the containers among the local variables of a stream are."""
    frame = stream.gi_frame
    held = frame.f_locals if frame is not None else {}
    return {n: len(v) for n, v in held.items() if isinstance(v, list | dict | deque | set)}


def file_of(dataset: Any) -> str:
    """The file of the user's class that a dataset is of; empty for a library's."""
    for kind in type(dataset).__mro__:
        if kind_of(file := _source(kind)) == "user":
            return file
    return ""


def _source(kind: type) -> str:
    with contextlib.suppress(TypeError, OSError):
        return inspect.getsourcefile(kind) or "<none>"
    return "<none>"
