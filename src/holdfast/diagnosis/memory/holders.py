"""Everything a script can reach by name, and the name it would write to get there.

From the locals of the running functions and the globals of the user's files down through
attributes, items, closures, defaults, class attributes, hooks and caches. Bounded by a number of
objects and a time; long containers are looked into at both ends only, and what has few siblings
comes before what has many, so that a model of thousands of modules hides nothing beside it.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from types import FrameType
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from ..source.owner import file_of_type, owner_of, user_modules
from ..source.place import forget_locals, frames_from, kind_of

# Objects looked at and seconds spent at most.
_OBJECTS = 20_000
_SECONDS = 0.02
# Containers up to this length are looked into item by item, longer ones at both ends.
_WHOLE = 64
_ENDS = 4
# Shorter texts among the items of a container are not worth a look.
_TEXT = 1024
# Libraries keep objects of objects of objects; their users keep things near.
_INTO_LIBRARIES = 3

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where a module keeps the functions that were registered on it."""
CACHED = type(functools.lru_cache(lambda: None))
"""What ``functools.cache`` and ``lru_cache`` make of a function."""
_SEQUENCES = (list, deque, tuple)
_PLAIN = (int, float, complex, bool, type(None), types.ModuleType, types.BuiltinFunctionType)
_TORCHS_OWN = {
    "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_backward_pre_hooks",
    "_backward_hooks", "_forward_hooks", "_forward_hooks_with_kwargs", "_is_full_backward_hook",
    "_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs",
    "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks", "training", "_compiled_call_impl",
}  # fmt: skip


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
    depth: int = 0
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
    def root(self) -> str:
        """The variable that the path begins with."""
        return f"{self.scope}|{self.path.partition('.')[0].partition('[')[0]}"

    @property
    def identity(self) -> str:
        """What stays the same from step to step: where it hangs, not what hangs there."""
        return f"{self.scope}|{self.path}"


def walk(frame: FrameType | None, *, thorough: bool = False) -> list[Held]:
    """Every container, tensor, array and text within reach of the code that runs ``frame``."""
    seen: set[int] = set()
    # What runs comes first, and the files it is in: a large program has many modules.
    found = _follow(_near(frame), seen, _SECONDS)
    found += _follow(_beside(frame), seen, _SECONDS)
    far = list(_far())
    if thorough:
        far.append(list(_strays()))
    found += _follow(far, seen, _SECONDS * (3 if thorough else 1))
    for at in _running(frame):
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
    until = perf_counter() + seconds
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
        if count >= _OBJECTS or (count % 128 == 0 and perf_counter() > until):
            break
        if _measurable(value) or (not held.depth and owner_of(type(value)) == "user"):
            found.append(held)
        below = list(_below(held))
        if below:
            queues.setdefault(cost + len(below).bit_length(), deque()).extend(below)
    return found


def _measurable(value: Any) -> bool:
    return (
        isinstance(
            value, Tensor | np.ndarray | list | dict | deque | set | str | bytes | bytearray | tuple
        )
        or type(value) is CACHED
    )


# ------------------------------------------------------------------ where paths begin


def _near(frame: FrameType | None) -> Iterator[list[Held]]:
    """Variables of what is running."""
    for at in _running(frame):
        names = at.f_locals
        if names is at.f_globals:
            yield _globals(at.f_code.co_filename, names)
            continue
        scope = f"{at.f_code.co_filename}:{at.f_code.co_name}"
        yield [Held(n, n, "local", at, n, v, scope) for n, v in list(names.items())]


def _beside(frame: FrameType | None) -> Iterator[list[Held]]:
    """Globals of the files that functions run from."""
    for file, names in {at.f_code.co_filename: at.f_globals for at in _running(frame)}.items():
        yield _globals(file, names)


def _far() -> Iterator[list[Held]]:
    """Globals of all files of the user, and what pyplot keeps until it is closed."""
    pyplot = sys.modules.get("matplotlib._pylab_helpers")
    if pyplot is not None:
        kept: Any = pyplot.Gcf
        yield [Held("pyplot's figures", "figs", "attribute", kept, "figs", kept.figs, "<pyplot>:")]
    for name in user_modules():
        module = sys.modules.get(name)
        if module is not None:
            yield _globals(str(module.__file__), vars(module))


def _running(frame: FrameType | None) -> list[FrameType]:
    return [at for at in frames_from(frame) if kind_of(at.f_code.co_filename) == "user"]


def _globals(file: str, names: dict[str, Any]) -> list[Held]:
    return [
        Held(name, name, "global", names, name, value, f"{file}:")
        for name, value in list(names.items())
        if not name.startswith("__")
    ]


def _strays() -> Iterator[Held]:
    """Objects and functions of the user that no name leads to: held by a library or by C++."""
    users: dict[type, bool] = {}
    for thing in gc.get_objects():
        kind = type(thing)
        if kind not in users:
            users[kind] = kind is types.GeneratorType or owner_of(kind) == "user"
        if kind is types.FunctionType:
            if kind_of(thing.__code__.co_filename) == "user" and thing.__closure__:
                name = thing.__name__
                yield Held(name, name, "function", None, None, thing, thing.__code__.co_filename)
        elif users[kind]:
            name = kind.__name__
            yield Held(name, name, "object", None, None, thing, str(file_of_type(kind)))


# ------------------------------------------------------------------ from one to the next


def _below(held: Held) -> Iterable[Held]:
    value = held.value
    kind = type(value)
    if isinstance(value, Tensor):
        return ()
    if isinstance(value, _SEQUENCES):
        return _items(held, _both_ends(value))
    if isinstance(value, dict):
        return _items(held, _some(value))
    if isinstance(value, nn.Module):
        return _module(held, value)
    if kind is types.FunctionType:
        return _function(held, value)
    if kind is types.MethodType:
        return (_down(held, held.path, "object", None, None, value.__self__),)
    if kind is types.GeneratorType:
        return _generator(held, value)
    if kind is functools.partial:
        kept = [value.func, *value.args, *value.keywords.values()]
        return [_down(held, held.path, "object", None, None, thing) for thing in kept]
    if kind is CACHED:
        return [_down(held, held.path, "function", None, None, value.__wrapped__)]
    if isinstance(value, type):
        return _attributes(held, vars(value), value) if owner_of(value) == "user" else ()
    if isinstance(value, str | bytes | bytearray | np.ndarray | set | Optimizer):
        return ()
    return _object(held, value)


def _down(held: Held, path: str, how: str, owner: Any, key: Any, value: Any) -> Held:
    name = key if isinstance(key, str) and how != "item" else held.name
    scope = held.scope
    return Held(path, name, how, owner, key, value, scope, held.depth + 1, held.foreign)


def _both_ends(value: Any) -> Iterator[tuple[Any, Any]]:
    if len(value) <= _WHOLE:
        return iter(list(enumerate(value)))
    return iter([*((i, value[i]) for i in range(_ENDS)), *((-i, value[-i]) for i in (1, 2))])


def _some(value: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    if len(value) <= _WHOLE:
        return iter(list(value.items()))
    return iter(list(islice(value.items(), _ENDS)))


def _items(held: Held, items: Iterator[tuple[Any, Any]]) -> Iterator[Held]:
    for key, item in items:
        if isinstance(item, int | float | type(None)):
            continue
        if isinstance(item, str | bytes) and len(item) < _TEXT:
            continue
        shown = repr(key) if isinstance(key, int | str | float) else "..."
        yield _down(held, f"{held.path}[{shown[:40]}]", "item", held.value, key, item)


def _module(held: Held, module: nn.Module) -> Iterator[Held]:
    inside = vars(module)
    for name, value in list(inside.items()):
        if name not in _TORCHS_OWN:
            yield _down(held, f"{held.path}.{name}", "attribute", inside, name, value)
    for table in ("_buffers", "_modules"):
        for name, value in list(inside.get(table, {}).items()):
            if value is not None:
                path = f"{held.path}[{name}]" if name.isdigit() else f"{held.path}.{name}"
                yield _down(held, path, "attribute", inside[table], name, value)
    for table in HOOKS:
        hooks = inside.get(table, {})
        if len(hooks) > 1:  # more and more of them keep what they hold
            yield _down(held, f"{held.path}.{table}", "attribute", inside, table, hooks)
        for hook in list(hooks.values()):
            yield _down(held, f"{held.path}'s hook", "object", None, None, hook)
    if kind_of(str(file_of_type(type(module)))) == "user":
        yield _down(held, type(module).__name__, "object", None, None, type(module))


def _function(held: Held, function: types.FunctionType) -> Iterator[Held]:
    code = function.__code__
    if kind_of(code.co_filename) != "user":
        return
    scope = f"{code.co_filename}:{function.__name__}"
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield Held(name, name, "closure", cell, name, cell.cell_contents, scope, held.depth + 1)
        except ValueError:  # not assigned yet
            continue
    given = function.__defaults__ or ()
    count = code.co_argcount
    for name, value in zip(code.co_varnames[count - len(given) : count], given, strict=False):
        yield Held(name, name, "default", None, name, value, scope, held.depth + 1)
    for name, value in {**(function.__kwdefaults__ or {}), **vars(function)}.items():
        yield Held(name, name, "default", None, name, value, scope, held.depth + 1)


def _generator(held: Held, generator: Any) -> Iterator[Held]:
    at = generator.gi_frame
    if at is not None and kind_of(at.f_code.co_filename) == "user":
        scope = f"{at.f_code.co_filename}:{at.f_code.co_name}"
        names = dict(at.f_locals)
        forget_locals(at)
        for name, value in names.items():
            yield Held(name, name, "local", at, name, value, scope, held.depth + 1)


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
    foreign = held.foreign + (whose != "user")
    if foreign > _INTO_LIBRARIES:
        return
    inside = getattr(value, "__dict__", None)
    if isinstance(inside, dict):
        for name, item in list(inside.items()):
            below = _down(held, f"{held.path}.{name}", "attribute", inside, name, item)
            below.foreign = foreign
            yield below
    for name in getattr(type(value), "__slots__", ()):
        if isinstance(name, str) and not name.startswith("__"):
            item = getattr(value, name, None)
            yield _down(held, f"{held.path}.{name}", "attribute", value, name, item)
    if whose == "user":
        kind = type(value)
        yield _down(held, kind.__name__, "object", None, None, kind)
