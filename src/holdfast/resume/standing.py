"""Where the loops of functions at work stand: read from the stacks on which Python keeps iterators.

A ``for`` keeps its iterator where no Python can ask for it. It is read here and never written:
what cannot be read beyond doubt is refused. Known are CPython 3.11 to 3.13.
"""

from __future__ import annotations

import ast
import collections
import ctypes
import inspect
import itertools
import sys
from types import FrameType
from typing import Any, NamedTuple

from ..diagnosis.source.files import kind_of, short_name
from ..diagnosis.source.place import frames_from
from . import source
from .frames import scope_line
from .refusal import RefusedError
from .values.nodes import SCALARS

_LONGEST = 1 << 17
_FRAME = 24
"""Where an object of a frame points to the frame itself."""
_TOP, _FIRST = 64, 72
"""In the frame: the height of its stack, and its variables, which the stack follows."""
_BACK = {(3, 11): 40, (3, 12): 48, (3, 13): 48}
"""In the frame: where it points back to its object."""
_RANGE, _LIST, _TUPLE = type(iter(range(0))), type(iter([])), type(iter(()))
_KINDS: dict[int, type] = {id(kind): kind for kind in (_RANGE, _LIST, _TUPLE, enumerate, zip)}
# Decorators of these put nothing between a call and its function but a mode of torch.
_PLAIN_CALLERS = ("torch/utils/_contextlib.py", "contextlib.py")


class LoopAt(NamedTuple):
    """A ``for`` at work."""

    frame: int
    line: int
    iterator: Any


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
        around = source.blocks_around(file, scope_line(frame), frame.f_lineno, head if last else 0)
        kept = [one for one in around for _ in range(_kept(one))]
        words = _stack(frame)
        if len(words) != len(kept):
            text = "the call that the training runs in is a part of an expression, or in an except"
            raise RefusedError(f"{text}: give its result to a variable", file, frame.f_lineno)
        for word, block in zip(words, kept, strict=True):
            if isinstance(block, ast.For):
                found.append(LoopAt(number, block.lineno, _iterator(word, block, file)))
    return found


def _kept(block: ast.stmt) -> int:
    """How much a block keeps on the stack while its body is at work."""
    if isinstance(block, ast.With):
        return len(block.items)
    return int(isinstance(block, ast.For))


def _check_callers(frames: list[FrameType]) -> None:
    for one in frames_from(frames[-1]):
        file = one.f_code.co_filename
        if one is frames[0]:
            return
        if kind_of(file) != "user" and not file.replace("\\", "/").endswith(_PLAIN_CALLERS):
            raise RefusedError(f"{short_name(file)} calls the training loop, not the script")


def _stack(frame: FrameType) -> list[int]:
    """Addresses of what is on the stack of a frame, which is at a call or being traced."""
    back = _BACK.get(sys.version_info[:2])
    if back is None or sys.implementation.name != "cpython":
        raise RefusedError("this Python does not show where a loop stands")
    at = _word(id(frame) + _FRAME)
    if _word(at + back) != id(frame):
        raise RefusedError("this Python does not show where a loop stands")
    code = frame.f_code
    cells = [name for name in code.co_cellvars if name not in code.co_varnames]
    variables = len(code.co_varnames) + len(cells) + len(code.co_freevars)
    height = ctypes.c_int.from_address(at + _TOP).value - variables
    if not 0 <= height <= code.co_stacksize:
        text = "compiled code calls the training loop, not the script"
        raise RefusedError(text, code.co_filename, frame.f_lineno)
    return [_word(at + _FIRST + 8 * (variables + number)) for number in range(height)]


def _word(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value


def _iterator(address: int, loop: ast.For, file: str) -> Any:
    if not address or _word(address + 8) not in _KINDS:
        raise _unknown(loop, file, "")
    return ctypes.cast(address, ctypes.py_object).value


def _unknown(loop: ast.For, file: str, what: str) -> RefusedError:
    read = ast.unparse(loop.iter)
    read = read if len(read) < 60 else f"{read[:57]}..."
    text = f"the loop over {read} has a place that cannot be saved{what}: loop over a range"
    return RefusedError(text, file, loop.lineno)


# ---------------------------------------------------------------------- places of iterators


def place_of(iterator: Any) -> list[Any]:
    """What an iterator has left, as plain data; ``ValueError`` where that cannot be said."""
    kind, about = type(iterator), iterator.__reduce__()
    if kind is _RANGE:
        passed = about[2] if len(about) > 2 and about[2] else 0
        left = about[1][0][passed:]
        return ["range", left.start, left.stop, left.step, len(left)]
    if kind in (_LIST, _TUPLE):
        values = about[1][0][about[2] if len(about) > 2 else 0 :]
        if len(values) > _LONGEST or not SCALARS.issuperset(map(type, values)):
            raise ValueError(" (it holds more than numbers and texts)")
        return ["values", list(values)]
    if kind is enumerate:
        return ["enumerate", about[1][1], place_of(about[1][0])]
    if kind is zip:
        return ["zip", [place_of(one) for one in about[1]]]
    raise ValueError(f" (a {kind.__name__})")


def places(loops: list[LoopAt], frames: list[FrameType]) -> list[list[Any]]:
    """Frame, line and place of each."""
    found: list[list[Any]] = []
    for one in loops:
        try:
            found.append([one.frame, one.line, place_of(one.iterator)])
        except ValueError as error:
            file = frames[one.frame].f_code.co_filename
            loop = source.for_at(file, one.line)
            raise _unknown(loop, file, str(error)) from None
    return found


def between(here: list[Any], there: list[Any]) -> int:
    """How many rounds later an iterator comes from one place to another; -1: never."""
    if here[0] != there[0]:
        return -1
    if here[0] == "range":
        rounds = here[4] - there[4]
        return rounds if here[2:4] == there[2:4] and rounds >= 0 else -1
    if here[0] == "values":
        rounds = len(here[1]) - len(there[1])
        return rounds if rounds >= 0 and here[1][rounds:] == there[1] else -1
    if here[0] == "enumerate":
        rounds = between(here[2], there[2])
        return rounds if here[1] + rounds == there[1] else -1
    pairs = itertools.zip_longest(here[1], there[1], fillvalue=[""])
    several = {between(*pair) for pair in pairs}
    return several.pop() if len(several) == 1 else -1


def bring(loops: list[LoopAt], saved: list[list[Any]], frames: list[FrameType]) -> None:
    """Have the loops go on from saved places, which lie ahead."""
    here = places(loops, frames)
    check_ahead(here, saved, frames)
    for one, now, then in zip(loops, here, saved, strict=True):
        left = itertools.islice(one.iterator, between(now[2], then[2]))
        collections.deque(left, maxlen=0)
    if places(loops, frames) != saved:
        raise RefusedError("a loop could not be brought to its place in this Python")


def check_ahead(here: list[list[Any]], there: list[list[Any]], frames: list[FrameType]) -> None:
    """Refuse places that the same loops do not come to."""
    if [one[:2] for one in here] != [one[:2] for one in there]:
        raise RefusedError("other loops are at work than in the first round of training")
    for now, then in zip(here, there, strict=True):
        if between(now[2], then[2]) < 0:
            file = frames[now[0]].f_code.co_filename
            what = " (it is made with other values each time)"
            raise _unknown(source.for_at(file, now[1]), file, what)
