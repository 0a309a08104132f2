"""Where the loops of the functions at work stand, and how they are put there again."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FrameType
from typing import Any

from .. import source
from ..source.frames import frames_from
from ..source.ownership import kind_of
from ..source.paths import short_name
from . import iterators
from .refusal import RefusedError
from .stacks import NOTHING, LoopAt, held, loops_asking, loops_of, replace, unknown
from .values.nodes import READS, WORKS

# Decorators of these put nothing between a call and its function but a mode of torch.
_PLAIN_CALLERS = ("torch/utils/_contextlib.py", "contextlib.py")


def loops_at_work(frames: list[FrameType], head: int) -> list[LoopAt]:
    """The ``for`` loops around the places of some frames, the outermost first.

    Args:
        frames: the outermost first; the last stands at the head of its innermost loop.
        head: the line of that.
    """
    _check_callers(frames)
    found: list[LoopAt] = []
    for number, frame in enumerate(frames):
        file, last = frame.f_code.co_filename, number == len(frames) - 1
        if frame.f_code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
            raise RefusedError("the loop is in a generator", file, frame.f_lineno)
        found += loops_of(frame, number, head if last else 0)
    return found


def loops_around_a_question(frames: list[FrameType]) -> list[LoopAt]:
    """The ``for`` loops around the places of some frames, the last of which asks for a batch."""
    _check_callers(frames)
    found: list[LoopAt] = []
    for number, frame in enumerate(frames):
        inner = frames[number + 1] if number + 1 < len(frames) else None
        if inner is None or inner.f_code.co_flags & inspect.CO_GENERATOR:
            found += loops_asking(frame, number)
        else:
            found += loops_of(frame, number, 0)
    return found


def _check_callers(frames: list[FrameType]) -> None:
    for one in frames_from(frames[-1]):
        file = one.f_code.co_filename
        if one is frames[0]:
            return
        if kind_of(file) != "user" and not file.replace("\\", "/").endswith(_PLAIN_CALLERS):
            raise RefusedError(f"{short_name(file)} calls the training loop, not the script")


def places(
    loops: list[LoopAt], frames: list[FrameType], taken: Callable[[Any, str], Any]
) -> list[list[Any]]:
    """Frame, line and place of each; what they read is taken by ``taken``."""
    found: list[list[Any]] = []
    for number, one in enumerate(loops):
        try:
            place = _place(one, _path(number, one), taken)
        except iterators.NoPlaceError as why:
            raise _unknown(one, frames, f"{why}") from None
        except RefusedError as refusal:
            raise refusal.at(frames[one.frame].f_code.co_filename, one.line) from None
        found.append([one.frame, one.line, place])
    return found


def _place(one: LoopAt, path: str, taken: Callable[[Any, str], Any]) -> iterators.Place:
    if not one.cell:
        return iterators.take(one.iterator, path, taken)
    value = held(one.cell)
    return {"i": "nothing"} if value is NOTHING else {"i": "value", "v": taken(value, path)}


def _put(
    one: LoopAt, place: iterators.Place, path: str, value: Callable[[Any, Any, str], Any]
) -> None:
    if not one.cell:
        iterators.put(one.iterator, place, path, value)
        return
    live = held(one.cell)
    if (live is NOTHING) != (place["i"] == "nothing"):
        raise RefusedError("an expression around the training is not where it was")
    made = NOTHING if live is NOTHING else value(live, place["v"], path)
    if made is not live:
        replace(one.cell, live, made)


def shapes(found: list[list[Any]]) -> list[list[Any]]:
    """What a resumed script must have of some places by itself."""
    return [[frame, line, iterators.shape(place)] for frame, line, place in found]


def put_back(
    loops: list[LoopAt],
    saved: list[list[Any]],
    frames: list[FrameType],
    value: Callable[[Any, Any, str], Any],
) -> None:
    """Put the same loops where they stood; what they read is made by ``value``."""
    if [[one.frame, one.line] for one in loops] != [one[:2] for one in saved]:
        raise RefusedError("other loops are at work than at the checkpoint")
    for number, (one, then) in enumerate(zip(loops, saved, strict=True)):
        try:
            _put(one, then[2], _path(number, one), value)
        except iterators.NoPlaceError as why:
            raise _unknown(one, frames, f"{why}") from None
        except RefusedError as refusal:
            raise refusal.at(frames[one.frame].f_code.co_filename, one.line) from None


def check_alike(first: list[list[Any]], here: list[list[Any]], frames: list[FrameType]) -> None:
    """Refuse places that the first round, which a resumed script comes through, cannot lead to."""
    if [one[:2] for one in shapes(here)] != [one[:2] for one in first]:
        raise RefusedError("other loops are at work than in the first round of training")
    for then, (number, line, place) in zip(first, here, strict=True):
        if iterators.shape(place) != then[2]:
            one = LoopAt(number, line, None)
            raise _unknown(one, frames, " (it reads something of another kind than at first)")


def _path(number: int, one: LoopAt) -> str:
    return f"loop {number}/{READS if not one.cell else WORKS}{one.line} reads"


def _unknown(one: LoopAt, frames: list[FrameType], what: str) -> RefusedError:
    file = frames[one.frame].f_code.co_filename
    if one.cell:
        return RefusedError(f"the line has a place that cannot be saved{what}", file, one.line)
    return unknown(source.for_at(file, one.line), file, what)
