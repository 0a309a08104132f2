"""An endless recursion: what calls itself, with which arguments, and whether these repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import FrameType
from typing import Any

from ...records.crash import RaisedException, Recursion, RecursionArgument
from .traceback_frames import TracebackEntry
from .values import in_words, is_module, is_tensor

# The innermost calls that are looked at; a function that stands in them so often repeats.
_LOOKED = 240
_OFTEN = 8
# Arguments that repeat do so within so many calls.
_LONGEST = 60
_SHOWN = 5
# What cannot change between two calls.
_FIXED = (bool, int, float, str, bytes, tuple, frozenset, type(None))


def recursion(error: BaseException, calls: Sequence[TracebackEntry]) -> RaisedException:
    """The functions of the circle, innermost first, and the arguments of the user's."""
    if not isinstance(error, RecursionError):
        return RaisedException()
    last = list(reversed(calls[-_LOOKED:]))
    counted = Counter(call.frame.f_code for call in last)
    circle = [call for call in last if counted[call.frame.f_code] >= _OFTEN]
    if not circle:
        return RaisedException()
    one = next((call for call in circle if call.is_users), circle[0])
    frames = [call.frame for call in last if call.frame.f_code is one.frame.f_code]
    every, fixed, arguments = _arguments(frames)
    return RaisedException(
        recursion=Recursion(
            function=one.function,
            functions=tuple(dict.fromkeys(call.function for call in circle))[:4],
            users=one.is_users,
            modules=all(is_module(frame.f_locals.get("self")) for frame in frames),
            every=every,
            fixed=fixed,
            arguments=arguments,
        )
    )


def _arguments(frames: Sequence[FrameType]) -> tuple[int, bool, tuple[RecursionArgument, ...]]:
    """After how many calls they repeat, whether they are fixed, and those that change."""
    code = frames[0].f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    keys = [tuple(_key(frame.f_locals.get(name)) for name in names) for frame in frames]
    # The innermost ones may just be at work on their arguments.
    keys = keys[1:]
    most = min(_LONGEST, len(keys) // 2)
    every = next((n for n in range(1, most + 1) if keys[n:] == keys[: len(keys) - n]), 0)
    values = [frames[1].f_locals.get(name) for name in names]
    fixed = all(isinstance(value, _FIXED) for value in values)
    changing: list[RecursionArgument] = []
    for at, name in enumerate(names):
        if len({key[at] for key in keys}) > 1:
            shown = [in_words(name, f.f_locals.get(name)) for f in frames[1 : _SHOWN + 1]]
            values_of = tuple(each[:40] for each in reversed(shown))
            changing.append(RecursionArgument(name=name, values=values_of))
    return every, fixed, tuple(changing[:3])


def _key(value: Any) -> object:
    """Equal for two arguments that are the same."""
    if isinstance(value, bool | int | float | str | bytes) or value is None:
        return type(value), value
    if is_tensor(value):
        return id(value), value._version  # changed in place, it is another
    return id(value)
