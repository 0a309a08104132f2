"""What the workers of a loader can see of a script: their data, the code that they run, its names.

A worker is a copy of the process at the moment when it was started. One that is started again later
hands out the same only if all of that is still what it was.
"""

from __future__ import annotations

import itertools
import time
import types
from collections.abc import Iterator
from types import CodeType
from typing import Any

from torch import Tensor

from ..source.ownership import kind_of
from .frames import user_modules
from .refusal import RefusedError
from .values.nodes import SCALARS, of_user
from .worker_view import changed, names_in, runs_own_code, seen_by_workers

_LONGEST = 1.0
"""Seconds that one look may take; data that takes longer is not looked at a second time."""
_WRITERS = frozenset(
    (
        *("print", "write", "writelines", "write_text", "write_bytes", "writerow", "writerows"),
        *("savetxt", "savez", "dump", "to_csv", "remove", "unlink", "rename", "mkdir", "touch"),
    )
)
_MOST = 200_000
"""Objects that a search passes by."""


class Sight:
    """What the workers of a loader could see when they were started.

    Args:
        iterator: whose workers have just been started.
    """

    _slow = False

    def __init__(self, iterator: Any) -> None:
        began = time.thread_time()
        self._view = seen_by_workers(iterator)
        if time.thread_time() - began > _LONGEST:
            Sight._slow = True

    @classmethod
    def of(cls, loader: Any, iterator: Any) -> Sight | None:
        """The sight of a loader; None where nothing of the script is run, or it cannot be told."""
        if cls._slow or not runs_own_code(loader):
            return None
        try:
            return cls(iterator)
        except RefusedError:
            return None

    def changed(self, iterator: Any) -> str:
        """What is not as it was any more; empty where all is."""
        try:
            return changed(self._view, iterator)
        except RefusedError as refusal:
            return refusal.reason


def shares_memory(loader: Any) -> str:
    """What the workers of a loader share with this process, which may change it under them."""
    roots = [loader.dataset, loader.collate_fn, loader.worker_init_fn]
    for one in _reached([*roots, *_globals(roots).values()], []):
        if isinstance(one, Tensor):
            if one.device.type == "cpu" and one.is_shared():
                return "a tensor in shared memory"
        elif type(one).__module__.startswith("multiprocessing."):
            return f"a {type(one).__name__} of multiprocessing"
    return ""


def writes(loader: Any) -> str:
    """By what the code of the workers of a loader writes, which would come twice; mostly empty."""
    codes = list[CodeType]()
    roots = [loader.dataset, loader.collate_fn, loader.worker_init_fn]
    for _ in _reached([*roots, *_globals(roots).values()], codes):
        pass
    names = {name for code in codes for name, _ in _names(code)}
    return min(names & _WRITERS, default="")


def _globals(roots: list[Any]) -> dict[str, Any]:
    """What the code that is reached from some objects may read in the script's modules."""
    found, codes, todo = dict[str, Any](), list[CodeType](), list(roots)
    while todo:
        for _ in _reached(todo, codes):
            pass
        names = dict[str, bool]()
        for name, free in (one for code in codes for one in _names(code)):
            names[name] = names.get(name, False) or free
        todo = []
        for module, held in user_modules().items():
            for name, free in names.items():
                path = f"module {module}/{name}"
                # As an attribute it may be one of another module: `config.LEVEL`.
                if name in vars(held) and (free or module != "__main__") and path not in found:
                    found[path] = vars(held)[name]
                    todo.append(found[path])
    return found


def _names(code: CodeType) -> Iterator[tuple[str, bool]]:
    """Names that a piece of code and the code inside of it read; whether they are variables."""
    yield from names_in(code)
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _names(one)


def _reached(roots: list[Any], codes: list[CodeType]) -> Iterator[Any]:
    """Objects that are reached from some, each once; code of the script goes to ``codes``."""
    todo, seen = list(roots), dict[int, Any]()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        if len(seen) > _MOST:
            raise RefusedError("a dataset holds too many objects to be looked through")
        seen[id(one)] = one
        yield one
        todo += _held(one, codes)


def _held(one: Any, codes: list[CodeType]) -> list[Any]:
    if isinstance(one, types.FunctionType):
        if kind_of(one.__code__.co_filename) != "user":
            return []
        codes.append(one.__code__)
        cells = [cell.cell_contents for cell in one.__closure__ or () if _is_filled(cell)]
        return [*cells, *(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
    if isinstance(one, types.MethodType):
        return [one.__func__, one.__self__]
    if isinstance(one, type):
        return list(vars(one).values()) + list(one.__bases__) if of_user(one) else []
    if isinstance(one, types.ModuleType):
        return []
    held: list[Any] = [type(one)] if of_user(type(one)) else []
    if isinstance(one, property):
        return [part for part in (one.fget, one.fset) if part is not None]
    if isinstance(one, staticmethod | classmethod):
        return [one.__func__]
    if isinstance(one, list | tuple | set | frozenset):
        return held + _not_leaves(one)
    if isinstance(one, dict):
        return held + _not_leaves(one.values())
    inside = getattr(one, "__dict__", None)
    held += [getattr(one, name) for name in ("func", "args", "keywords") if hasattr(one, name)]
    return held + (_not_leaves(inside.values()) if isinstance(inside, dict) else [])


def _not_leaves(items: Any) -> list[Any]:
    # Data is thousands of plain values.
    kinds = set(map(type, items))
    if kinds <= {tuple, list}:  # and pairs of them
        kinds = set(map(type, itertools.chain.from_iterable(items)))
    return [] if kinds <= SCALARS else [one for one in items if type(one) not in SCALARS]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
