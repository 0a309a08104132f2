"""The user's frames on the stack: reading and writing their variables, and where they stand."""

from __future__ import annotations

import ctypes
import dis
import functools
import hashlib
import inspect
import os
import sys
from collections.abc import Mapping
from types import FrameType, ModuleType
from typing import Any

from .. import source
from ..source import ownership
from ..source.frames import forget_locals, frames_from, user_frames
from ..source.ownership import kind_of
from ..source.paths import short_name
from .refusal import RefusedError

# Between a loop and its loader these only hand on what they get.
_HAND_ON = ("tqdm",)


def chain(frame: FrameType | None) -> list[FrameType]:
    """The user's frames, the outermost first."""
    return list(user_frames(frame))[::-1]


def check_reader(frame: FrameType | None) -> None:
    """Refuse a loader that is read by anything but the user's own loop."""
    for one in frames_from(frame):
        file = one.f_code.co_filename
        kind = kind_of(file)
        if kind == "user":
            line, function = one.f_lineno, scope_line(one)
            name = one.f_code.co_name
            if name in ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>") or (
                source.in_comprehension(file, function, line)
            ):
                raise RefusedError("a comprehension reads the loader", file, line)
            return
        if kind == "library" and _package(one) not in _HAND_ON:
            raise RefusedError(f"{short_name(file)} reads the loader, not the script")
    raise RefusedError("no code of the script reads the loader")


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).split(".")[0]


def scope_line(frame: FrameType) -> int:
    """First line of the function of a frame; 0 for a module."""
    return frame.f_code.co_firstlineno if _is_function(frame) else 0


def _is_function(frame: FrameType) -> bool:
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def position(frames: list[FrameType]) -> list[list[Any]]:
    """Where each frame stands: file, function, instruction."""
    return [
        [os.path.basename(f.f_code.co_filename), f.f_code.co_qualname, _instruction(f)]
        for f in frames
    ]


def _instruction(frame: FrameType) -> int:
    """The instruction a frame is at; 3.11 does some calls one instruction earlier once it knows."""
    last, code = frame.f_lasti, frame.f_code.co_code
    return last + 4 if last >= 0 and dis.opname[code[last]] == "PRECALL" else last


def digests() -> dict[str, str]:
    """What each file of the user's code is known by."""
    files = {str(module.__file__) for module in user_modules().values()}
    return {os.path.basename(file): _digest(file) for file in sorted(files)}


@functools.lru_cache(maxsize=256)
def _digest(file: str) -> str:
    try:
        with open(file, "rb") as opened:
            return hashlib.sha256(opened.read()).hexdigest()
    except OSError:
        return ""


def variables(frames: list[FrameType]) -> dict[str, dict[str, Any]]:
    """Variables of functions by the number of their frame, and those of the user's modules."""
    found: dict[str, dict[str, Any]] = {}
    for number, frame in enumerate(frames):
        if _is_function(frame):
            found[f"{number}"] = dict(frame.f_locals)
            forget_locals(frame)
    for name, module in user_modules().items():
        found[f"module {name}"] = {
            key: value
            for key, value in list(vars(module).items())
            if not key.startswith("__")  # those of torch.compile too
        }
    return found


def put(frames: list[FrameType], values: Mapping[str, Mapping[str, Any]]) -> None:
    """Give variables their values; those that are not named stay as they are."""
    for number, frame in enumerate(frames):
        given = values.get(f"{number}")
        if given:
            put_locals(frame, given)
    modules = user_modules()
    for key, given in values.items():
        if key.startswith("module ") and (name := key.removeprefix("module ")) in modules:
            vars(modules[name]).update(given)


def put_locals(frame: FrameType, given: Mapping[str, Any]) -> None:
    """Write variables of a function that is being executed."""
    mapping = frame.f_locals
    mapping.update(given)
    if sys.version_info < (3, 13):
        # From 3.13 on f_locals writes through.
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        del mapping
        forget_locals(frame)


def user_modules() -> dict[str, ModuleType]:
    """The modules of the user's own code that have a file to read."""
    found: dict[str, ModuleType] = {}
    for name in ownership.user_modules():
        module = sys.modules.get(name)
        # torch has modules of a kind of its own that name files which are none.
        if module is None or type(module) is not ModuleType or name == "sitecustomize":
            continue
        # multiprocessing gives the script a second name.
        if os.path.isfile(str(module.__file__)) and module not in found.values():
            found[name] = module
    return found


def place_of(frames: list[FrameType], root: str, name: str) -> tuple[str, int]:
    """File and line at which a variable gets its first value."""
    if root.startswith("module "):
        module = user_modules().get(root.removeprefix("module "))
        file = str(getattr(module, "__file__", ""))
        return file, source.first_line_of(file, 0, name) if file else 0
    frame = frames[int(root)]
    file = frame.f_code.co_filename
    return file, source.first_line_of(file, scope_line(frame), name)
