"""Everything a script can reach by name, and the name it would write to get there.

From the locals of the running functions and the globals of the user's files down through
attributes, items, closures, defaults, class attributes, hooks and caches. Of functions that are not
the user's, those locals count that are: where a library runs the loop, or ``holdfast train`` does,
nothing else may lead to the loss function. Bounded by a number of objects and a time; long
containers are looked into at both ends only, and what has few siblings comes before what has many,
so that a model of thousands of modules hides nothing beside it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from time import thread_time
from types import FrameType
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from ...source.frames import forget_locals, frames_from, user_frames
from ...source.ownership import file_of, kind_of, owner_of, user_modules

# Objects looked at and seconds spent at most, of this thread: a busy machine is no reason to stop.
_OBJECTS = 20_000
_SECONDS = 0.02
# Containers up to this length are looked into item by item, longer ones at both ends.
_WHOLE = 64
_ENDS = 4
# Shorter texts among the items of a container are not worth a look.
_TEXT = 1024
# Libraries keep objects of objects of objects; their users keep things near.
_INTO_LIBRARIES = 3

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
CACHED = type(functools.lru_cache(lambda: None))
"""What ``functools.cache`` and ``lru_cache`` make of a function."""
_PLAIN = (int, float, complex, bool, type(None), types.ModuleType, types.BuiltinFunctionType)
_LEAVES = (Tensor, np.ndarray, str, bytes, bytearray, set)
_CONTAINERS = (list, dict, deque, tuple)
_COUNTED = (*_LEAVES, *_CONTAINERS)
_ENDED = (*_LEAVES, Optimizer)
_TORCHS_OWN = set(vars(nn.Module()))


@dataclass(slots=True)
class Held:
    """A value and where it hangs. Keeps it alive: to be dropped as soon as it is judged."""

    path: str
    """As the user would write it: ``self.history['loss']``."""
    name: str
    """The last name in the path, which the source can be searched for."""
    how: str
    """``local``, ``global``, ``attribute``, ``item``, ``closure``, ``default`` or ``cache``."""
    owner: Any
    key: Any
    value: Any
    scope: str
    """File and function, class or module the path begins in."""
    foreign: int = 0
    """How many objects of libraries lie between it and the user's own."""

    @property
    def function(self) -> str:
        """The function that the name is a variable of; empty for attributes and globals."""
        base = self.path.partition("[")[0]
        return self.scope.rpartition(":")[2] if base == self.name else ""

    @property
    def file(self) -> str:
        """The file that the path begins in."""
        return self.scope.rpartition(":")[0]

    @property
    def identity(self) -> str:
        """What stays the same from step to step: where it hangs, not what hangs there."""
        return f"{self.scope}|{self.path}"


def walk(frame: FrameType | None) -> list[Held]:
    """Every container, tensor, array and text within reach of the code that runs ``frame``."""
    seen: set[int] = set()
    # What runs comes first, and the files it is in: a large program has many modules.
    found = _follow(_near(frame), seen, _SECONDS)
    found += _follow(_handed_over(frame), seen, _SECONDS)
    found += _follow(_beside(frame), seen, _SECONDS)
    found += _follow(_far(), seen, _SECONDS)
    for at in frames_from(frame):
        forget_locals(at)
    return found


def reachable(thing: Any, name: str = "self") -> list[Held]:
    """The same of one object: everything that hangs below it."""
    return _follow([[Held(name, name, "object", None, None, thing, "")]], set(), 5 * _SECONDS)


def _follow(scopes: Iterable[list[Held]], seen: set[int], seconds: float) -> list[Held]:
    """Everything below the variables of some scopes, the cheapest first.

    Each level on the way to a value costs the binary digits of the number of its siblings.
    """
    found: list[Held] = []
    until = thread_time() + seconds
    queues: dict[int, deque[Held]] = {}
    for variables in scopes:
        queues.setdefault(len(variables).bit_length(), deque()).extend(variables)
    cost = count = 0
    while queues:
        queue = queues.get(cost)
        if not queue:
            queues.pop(cost, None)
            cost += 1
            continue
        held = queue.popleft()
        value = held.value
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        count += 1
        if count >= _OBJECTS or (count % 128 == 0 and thread_time() > until):
            break
        if isinstance(value, _COUNTED) or type(value) is CACHED:
            found.append(held)
        below = list(_below(held))
        if below:
            queues.setdefault(cost + len(below).bit_length(), deque()).extend(below)
    return found


# ------------------------------------------------------------------ where paths begin


def _near(frame: FrameType | None) -> Iterator[list[Held]]:
    """Variables of what is running."""
    for at in user_frames(frame):
        inside = at.f_locals is not at.f_globals
        yield _locals(at) if inside else _globals(at.f_code.co_filename, at.f_globals)


def _handed_over(frame: FrameType | None) -> Iterator[list[Held]]:
    """Variables of other people's running functions that hold something of the user's."""
    for at in frames_from(frame):
        if kind_of(at.f_code.co_filename) == "user":
            continue
        variables = dict(at.f_locals).items() if at.f_locals is not at.f_globals else ()
        yield [
            Held(name, name, "local", at, name, value, f"{file}:")
            for name, value in variables
            if (file := _users_file(value)) is not None
        ]


def _users_file(value: Any) -> str | None:
    """The file of the user's that defines a function or the type of an object; None: none does."""
    if isinstance(value, types.MethodType):
        value = value.__func__
    if isinstance(value, types.FunctionType):
        file = value.__code__.co_filename
        return file if kind_of(file) == "user" else None
    kind = type(value)
    return (file_of(kind) or kind.__module__) if owner_of(kind) == "user" else None


def _beside(frame: FrameType | None) -> Iterator[list[Held]]:
    """Globals of the files that functions run from."""
    files = {at.f_code.co_filename: at.f_globals for at in user_frames(frame)}
    return (_globals(file, names) for file, names in files.items())


def _far() -> Iterator[list[Held]]:
    """Globals of all files of the user."""
    for name in user_modules():
        module = sys.modules.get(name)
        # At exit the script has no file any more; its globals came with the frame.
        if file := getattr(module, "__file__", None):
            yield _globals(str(file), vars(module))


def _locals(at: FrameType) -> list[Held]:
    scope = f"{at.f_code.co_filename}:{at.f_code.co_name}"
    names = dict(at.f_locals)
    return [
        Held(n, n, "local", at, n, value, scope)
        for n, value in names.items()
        if not isinstance(value, _PLAIN)
    ]


def _globals(file: str, names: dict[str, Any]) -> list[Held]:
    return [
        Held(name, name, "global", names, name, value, f"{file}:")
        for name, value in list(names.items())
        if not isinstance(value, _PLAIN) and not name.startswith("__")
    ]


# ------------------------------------------------------------------ from one to the next


def _below(held: Held) -> Iterable[Held]:
    value = held.value
    kind = type(value)
    if isinstance(value, _ENDED):
        return ()
    if isinstance(value, _CONTAINERS):
        return _items(held)
    if isinstance(value, nn.Module):
        return _module(held, value)
    if kind is types.FunctionType:
        return _function(value)
    if kind is types.MethodType:
        return [_bound(held, value)]
    if kind is types.GeneratorType:
        return _generator(value)
    if kind is CACHED:
        return [_down(held, held.path, "function", None, None, value.__wrapped__)]
    if isinstance(value, type):
        return _attributes(held, vars(value), value) if owner_of(value) == "user" else ()
    return _object(held, value)


def _down(held: Held, path: str, how: str, owner: Any, key: Any, value: Any) -> Held:
    name = key if isinstance(key, str) and how != "item" else held.name
    return Held(path, name, how, owner, key, value, held.scope, held.foreign)


def _bound(held: Held, method: types.MethodType) -> Held:
    """The object of a method; under the name of its class where the method is the user's."""
    thing, file = method.__self__, _users_file(method)
    if file is None:
        return _down(held, held.path, "object", None, None, thing)
    name = (thing if isinstance(thing, type) else type(thing)).__name__
    return Held(name, name, "object", None, None, thing, f"{file}:", held.foreign)


def _items(held: Held) -> Iterator[Held]:
    value = held.value
    if isinstance(value, dict):
        items = list(islice(value.items(), len(value) if len(value) <= _WHOLE else _ENDS))
    elif len(value) <= _WHOLE:
        items = list(enumerate(value))
    else:
        items = [(i, value[i]) for i in (*range(_ENDS), -1, -2)]
    for key, item in items:
        if isinstance(item, _PLAIN) or (isinstance(item, str | bytes) and len(item) < _TEXT):
            continue
        shown = repr(key) if isinstance(key, int | str | float) else "..."
        yield _down(held, f"{held.path}[{shown[:40]}]", "item", value, key, item)


def _module(held: Held, module: nn.Module) -> Iterator[Held]:
    inside = vars(module)
    for name, value in list(inside.items()):
        if name not in _TORCHS_OWN:
            yield _down(held, f"{held.path}.{name}", "attribute", inside, name, value)
    for table in ("_buffers", "_modules"):
        for name, value in list(inside.get(table, {}).items()):
            path = f"{held.path}[{name}]" if name.isdigit() else f"{held.path}.{name}"
            yield _down(held, path, "attribute", inside[table], name, value)
    for table in _HOOKS:
        for hook in list(inside.get(table, {}).values()):
            yield _down(held, f"{held.path}'s hook", "object", None, None, hook)
    if owner_of(type(module)) == "user":
        yield _down(held, type(module).__name__, "object", None, None, type(module))


def _function(function: types.FunctionType) -> Iterator[Held]:
    code = function.__code__
    if kind_of(code.co_filename) != "user":
        return
    scope = f"{code.co_filename}:{function.__name__}"
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # not assigned yet
            yield Held(name, name, "closure", cell, name, cell.cell_contents, scope)
    given = function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount][-len(given) :] if given else ()
    defaults = {**dict(zip(names, given, strict=False)), **(function.__kwdefaults__ or {})}
    for name, value in {**defaults, **vars(function)}.items():
        yield Held(name, name, "default", None, name, value, scope)


def _generator(generator: Any) -> list[Held]:
    at = generator.gi_frame
    if at is None or kind_of(at.f_code.co_filename) != "user":
        return []
    found = _locals(at)
    forget_locals(at)
    return found


def _attributes(held: Held, inside: Any, owner: type) -> Iterator[Held]:
    for name, value in list(inside.items()):
        if name.startswith("__"):
            continue
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        yield _down(held, f"{owner.__name__}.{name}", "attribute", owner, name, value)


def _object(held: Held, value: Any) -> Iterator[Held]:
    whose = owner_of(type(value))
    if whose == "torch" and not isinstance(value, DataLoader | Dataset):
        return
    held.foreign += whose != "user"
    inside = getattr(value, "__dict__", None)
    if isinstance(inside, dict) and held.foreign <= _INTO_LIBRARIES:
        for name, item in list(inside.items()):
            yield _down(held, f"{held.path}.{name}", "attribute", inside, name, item)
    if whose == "user":
        yield _down(held, type(value).__name__, "object", None, None, type(value))
