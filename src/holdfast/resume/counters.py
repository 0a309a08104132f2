"""What stands between a loop and its loader and counts: ``enumerate``.

Its count lives in the interpreter, beyond the reach of Python. It is set in the memory of the
object, which is checked before and after; ``zip`` and its like are refused.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import itertools
from types import FrameType, GeneratorType
from typing import Any

from ..source.frames import frames_from
from .refusal import RefusedError

_OFFSET = object.__basicsize__
_OTHERS = {zip, map, filter, *(o for o in vars(itertools).values() if isinstance(o, type))}


def counters(iterator: Any, frame: FrameType | None) -> list[Any]:
    """The ``enumerate`` objects through which a loop reads an iterator, innermost first."""
    links: list[Any] = [iterator, *_generators(frame)]
    found: list[Any] = []
    todo, rounds = list(links), 0
    while todo and rounds < 8:
        rounds += 1
        # Whatever holds one of them, among all objects of the process.
        holders = gc.get_referrers(*todo)
        todo = []
        for one in holders:
            if type(one) in _OTHERS:
                text = f"the loop reads the loader through {type(one).__name__}"
                raise RefusedError(text)
            if type(one) is tuple:
                todo.append(one)  # of zip and map
            if type(one) is enumerate and not any(one is other for other in found):
                found.append(one)
                todo.append(one)
    return found


def _generators(frame: FrameType | None) -> list[Any]:
    """Generators on the stack: progress bars, and loops of the user's own that hand on batches."""
    frames = {id(one) for one in frames_from(frame) if one.f_code.co_flags & inspect.CO_GENERATOR}
    if not frames:
        return []
    everything = gc.get_objects()
    return [one for one in everything if type(one) is GeneratorType and id(one.gi_frame) in frames]


def counts(found: list[Any]) -> list[int]:
    """What each will count next."""
    return [int(one.__reduce__()[1][1]) for one in found]


def set_counts(found: list[Any], values: list[int]) -> None:
    """Make each go on from a count."""
    if len(found) != len(values):
        raise RefusedError("the loop reads the loader through another enumerate than it did")
    for one, value in zip(found, values, strict=True):
        cell = ctypes.c_ssize_t.from_address(id(one) + _OFFSET)
        if cell.value != one.__reduce__()[1][1]:
            raise RefusedError("the count of enumerate cannot be set in this Python")
        cell.value = value
        if one.__reduce__()[1][1] != value:
            raise RefusedError("the count of enumerate cannot be set in this Python")
