"""The stacks on which Python keeps the iterators of loops at work, which no Python can ask for.

What cannot be read beyond doubt is refused. Known are CPython 3.11 to 3.13.
"""

from __future__ import annotations

import ast
import ctypes
import dis
import functools
import itertools
import sys
from types import FrameType, GeneratorType
from typing import Any, NamedTuple

from torch.utils.data.dataloader import _BaseDataLoaderIter

from .. import source
from .frames import scope_line, user_modules
from .refusal import RefusedError

_FRAME = 24
"""Where an object of a frame points to the frame itself."""
_TOP, _FIRST = 64, 72
"""In the frame: the height of its stack, and its variables, which the stack follows."""
_BACK = {(3, 11): 40, (3, 12): 48, (3, 13): 48}
"""In the frame: where it points back to its object."""


class _Items:
    """Something that is iterated over by its items alone, as an array is."""

    def __getitem__(self, number: int) -> int:
        return number


OF_SEQUENCES: tuple[Any, ...] = (
    *{type(iter(one)) for one in ([], (), "", b"", bytearray(), _Items())},
    *{type(reversed(one)) for one in ([], ())},
)
OF_DICTS: tuple[Any, ...] = tuple(type(iter(one)) for one in ({}.keys(), {}.items(), {}.values()))
OF_RANGES: tuple[Any, ...] = (type(iter(range(0))),)
OF_LOADERS: tuple[Any, ...] = tuple(_BaseDataLoaderIter.__subclasses__())
KINDS: tuple[Any, ...] = (*OF_SEQUENCES, *OF_DICTS, *OF_RANGES, itertools.count)
KINDS = (*KINDS, enumerate, zip, map, filter, GeneratorType, *OF_LOADERS)
"""Classes of iterators whose place can be told."""
NOTHING = object()


class LoopAt(NamedTuple):
    """A ``for`` at work: the number of its frame, its line and what it takes its values from."""

    frame: int
    line: int
    iterator: Any
    cell: int = 0
    """The address of its place on the stack, of what an expression has there meanwhile."""


def loops_of(frame: FrameType, number: int, head: int, *, more: int = 0) -> list[LoopAt]:
    """The ``for`` loops that a frame is in, the outermost first.

    Args:
        frame: one that is at a call, at a ``yield`` or being traced.
        number: what it is known by.
        head: the line of a loop whose head counts as inside of it; 0 for none.
        more: what else is on the stack.
    """
    file, words = frame.f_code.co_filename, _stack(frame)
    if frame.f_code.co_name == "<genexpr>":  # one iterator for each of its loops
        loop = ast.For(ast.Name("items"), ast.Name("..."), [], [], lineno=frame.f_lineno)
        return [LoopAt(number, loop.lineno, _iterator(one, loop, file)) for one in words]
    around = source.blocks_around(file, scope_line(frame), frame.f_lineno, head)
    kept = [one for one in around for _ in range(_kept(one))]
    if len(words) < len(kept) + more or source.in_handler(file, scope_line(frame), frame.f_lineno):
        text = "the call that the training runs in is in an except or a finally"
        raise RefusedError(f"{text}: move it out", file, frame.f_lineno)
    loops = [
        LoopAt(number, block.lineno, _iterator(word, block, file))
        for word, block in zip(words, kept, strict=False)
        if isinstance(block, ast.For)
    ]
    # `total += train()` has the total there, and `rows.append(train())` the list.
    first = _first(frame) + 8 * len(kept)
    rest = len(words) - len(kept) - more
    return loops + [LoopAt(number, frame.f_lineno, None, first + 8 * one) for one in range(rest)]


def loops_asking(frame: FrameType, number: int) -> list[LoopAt]:
    """The loops that a frame is in which asks a loader, or a generator at work, for a batch.

    Python does not tell how high its stack is then: what the blocks around keep lies at its foot.
    The loop that asks is none of them.
    """
    code, line = frame.f_code, frame.f_lineno
    file, function = code.co_filename, scope_line(frame)
    if dis.opname[code.co_code[frame.f_lasti]] == "FOR_ITER":
        around = source.blocks_around(file, function, line, line)
        reading = next((one for one in reversed(around) if isinstance(one, ast.For)), None)
        around = tuple(one for one in around if one is not reading)
    elif source.asks_alone(file, function, line):
        around = source.blocks_around(file, function, line, 0)
    else:
        text = "a batch is asked for amid an expression: give it to a variable first"
        raise RefusedError(text, file, line)
    if any(source.in_handler(file, function, one.lineno) for one in around):
        raise RefusedError("a batch is asked for in an except or finally", file, line)
    kept = [one for one in around for _ in range(_kept(one))]
    words = _stack(frame, len(kept))
    return [
        LoopAt(number, block.lineno, _iterator(word, block, file))
        for word, block in zip(words, kept, strict=True)
        if isinstance(block, ast.For)
    ]


def _kept(block: ast.stmt) -> int:
    """How much a block keeps on the stack while its body is at work."""
    if isinstance(block, ast.With):
        return len(block.items)
    return int(isinstance(block, ast.For))


def _stack(frame: FrameType, known: int = -1) -> list[int]:
    """Addresses of what is on the stack of a frame, which is at a call or being traced.

    Where it is neither the height is ``known``, or a part of it.
    """
    back = _BACK.get(sys.version_info[:2])
    if back is None or sys.implementation.name != "cpython":
        raise RefusedError("this Python does not show where a loop stands")
    at = word(id(frame) + _FRAME)
    if word(at + back) != id(frame):
        raise RefusedError("this Python does not show where a loop stands")
    code, first = frame.f_code, _first(frame)
    height = ctypes.c_int.from_address(at + _TOP).value - (first - at - _FIRST) // 8
    height = known if known >= 0 else height
    if not 0 <= height <= code.co_stacksize:
        text = "compiled code calls the training loop, not the script"
        raise RefusedError(text, code.co_filename, frame.f_lineno)
    return [word(first + 8 * number) for number in range(height)]


def _first(frame: FrameType) -> int:
    """The address at which the stack of a frame begins."""
    code = frame.f_code
    cells = [name for name in code.co_cellvars if name not in code.co_varnames]
    variables = len(code.co_varnames) + len(cells) + len(code.co_freevars)
    return word(id(frame) + _FRAME) + _FIRST + 8 * variables


def word(address: int) -> int:
    """What is in memory at an address."""
    return ctypes.c_size_t.from_address(address).value


def held(cell: int) -> Any:
    """What is at a place on a stack; ``NOTHING`` where that is empty."""
    address = word(cell)
    return ctypes.cast(address, ctypes.py_object).value if address else NOTHING


def replace(cell: int, old: Any, new: Any) -> None:
    """Have a place in memory that holds one object hold another."""
    if word(cell) != id(old):
        raise RefusedError("this Python does not show where a loop stands")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(new))
    ctypes.c_size_t.from_address(cell).value = id(new)
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(old))


def _iterator(address: int, loop: ast.For, file: str) -> Any:
    if not address or word(address + 8) not in _known():
        raise unknown(loop, file, "")
    return ctypes.cast(address, ctypes.py_object).value


def _known() -> set[int]:
    """Addresses of the classes whose objects a loop may take its values from."""
    own = (one for module in user_modules().values() for one in vars(module).values())
    return _kinds() | {id(one) for one in own if isinstance(one, type) and hasattr(one, "__next__")}


@functools.cache
def _kinds() -> set[int]:
    return {id(kind) for kind in KINDS}


def unknown(loop: ast.For, file: str, what: str) -> RefusedError:
    """The refusal of a loop whose place cannot be saved."""
    read = ast.unparse(loop.iter)
    read = read if len(read) < 60 else f"{read[:57]}..."
    text = f"the loop over {read} has a place that cannot be saved{what}: loop over a range"
    return RefusedError(text, file, loop.lineno)
