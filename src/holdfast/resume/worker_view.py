"""What the workers of a loader see of the script, by digests: has it changed since they began?

Workers are copies of the process as it was when the pass began. A resumed script that comes to its
batch at once starts them after everything was put back to what it was at the checkpoint: the same,
where nothing that their code can reach has changed between the two. What is reached is the dataset,
its functions and classes, each variable that this code reads, and what it may read as an attribute
of a module of the script (`config.LEVEL`).
"""

from __future__ import annotations

import dis
import functools
import types
import zlib
from collections import deque
from collections.abc import Iterator
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from ..source.ownership import kind_of
from .frames import user_modules
from .refusal import RefusedError
from .values.digests import pickle_digest
from .values.hidden import CACHE
from .values.nodes import SCALARS, class_name, of_user, slots

_BYTES = 256 << 20
_OBJECTS = 200_000
"""What is compared at most: it is read with every pass."""
_BY_NAME = frozenset(("globals", "locals", "eval", "exec", "vars", "import_module", "__import__"))
_BY_NAME |= frozenset(("_getframe", "currentframe"))
_MAIN = frozenset(("__main__", "modules"))
"""By what code may come to the script as a module."""
_ORDERED = (list, tuple, deque)
_CODE = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_CODE = (*_CODE, types.MethodWrapperType, types.GetSetDescriptorType, types.MemberDescriptorType)
_PARTS = {
    "_dataset": "the dataset",
    "_collate_fn": "the collate_fn of the loader",
    "_worker_init_fn": "the worker_init_fn of the loader",
}
View = dict[tuple[str, str], int]
"""A digest for each thing that is seen, by module and name."""


def runs_own_code(loader: Any) -> bool:
    """Whether a dataset, or what makes its batches, is the script's own."""
    names = ("collate_fn", "worker_init_fn")
    parts: list[Any] = [one for name in names if (one := getattr(loader, name, None)) is not None]
    todo: list[Any] = [getattr(loader, "dataset", None)]
    while todo:
        one = todo.pop()
        parts.append(one)
        todo += [vars(one)["dataset"]] if "dataset" in getattr(one, "__dict__", {}) else []
        parts += [vars(one)["transform"]] if "transform" in getattr(one, "__dict__", {}) else []
        todo += list(getattr(one, "datasets", ()))
    return any(
        kind_of(str(getattr(getattr(one, "__code__", None), "co_filename", ""))) == "user"
        or of_user(type(one))
        for one in parts
    )


def seen_by_workers(iterator: Any) -> View:
    """What code that the workers of a pass run can reach; ``RefusedError`` where that is open."""
    look = _Look()
    for attribute, name in _PARTS.items():
        look.root(("", name), getattr(iterator, attribute, None))
    done = set[tuple[str, str]]()
    while True:  # what is reached by a name has names of its own
        new = [
            (module, name)
            for module, held in sorted(user_modules().items())
            for name in sorted(look.names_of(module) & vars(held).keys())
            if (module, name) not in done
        ]
        if not new:
            return look.found
        for module, name in new:
            done.add((module, name))
            look.root((module, name), vars(user_modules()[module])[name])


def names_in(code: types.CodeType) -> Iterator[tuple[str, bool]]:
    """Names that a piece of code reads, but for code inside of it; whether they are variables."""
    variables = {
        one.argval
        for one in dis.get_instructions(code)
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME", "IMPORT_FROM")
    }
    yield from ((name, name in variables) for name in {*code.co_names, *variables})


def changed(before: View, iterator: Any) -> str:
    """What of it is not what it was when the pass began; empty where all is."""
    now = seen_by_workers(iterator)
    return next((key[1] for key in before | now if before.get(key) != now.get(key)), "")


class _Look:
    """One look, whose digests depend on values and on which objects are one, not on addresses."""

    def __init__(self) -> None:
        self.found: View = {}
        self._variables, self._attributes_read = set[str](), set[str]()
        self._reads_main = False
        self._met: dict[int, tuple[int, Any]] = {}
        self._bytes = 0
        self._name, self._digest = "", 0

    def names_of(self, module: str) -> set[str]:
        """Names that the code seen so far may read in a module.

        An attribute is hardly one of the script itself: of `self.x` a global `x` is none.
        """
        others = module != "__main__" or self._reads_main
        return self._variables | self._attributes_read if others else self._variables

    def root(self, key: tuple[str, str], value: Any) -> None:
        """Look at something and all that it holds."""
        self._name, self._digest = key[1], 0
        todo: list[Any] = [value]
        while todo:
            one = todo.pop()
            if id(one) in self._met:
                self._add(f"= {self._met[id(one)][0]}")
                continue
            if type(one) in SCALARS:
                self._add(f"{type(one).__name__} {one!r}")
                continue
            if len(self._met) > _OBJECTS or self._bytes > _BYTES:
                raise self._unknown("too much to be compared with every pass")
            # With the object: no other may get its id meanwhile.
            self._met[id(one)] = len(self._met), one
            self._add(class_name(type(one)))
            todo += reversed(list(self._held(one)))
        self.found[key] = self._digest

    def _add(self, text: str) -> None:
        self._digest = zlib.crc32(text.encode("utf-8", "surrogatepass"), self._digest)

    def _unknown(self, what: str) -> RefusedError:
        return RefusedError(f"the workers of the loader may see {self._name}, which holds {what}")

    def _held(self, one: Any) -> Iterator[Any]:
        """What an object holds; what it is besides goes into the digest."""
        if isinstance(one, torch.Tensor):
            data = one.detach().cpu().contiguous()
            if data.numel():
                self._numbers(data.reshape(-1).view(torch.uint8).numpy())
            yield from (str(one.dtype), tuple(one.shape))
        elif isinstance(one, np.ndarray) and one.dtype != object:
            if one.size:
                self._numbers(np.ascontiguousarray(one).reshape(-1).view(np.uint8))
            yield from (str(one.dtype), one.shape)
            yield from self._attributes(one)
        elif isinstance(one, np.random.Generator):
            yield one.bit_generator.state
        elif isinstance(one, np.random.RandomState):
            yield one.get_state(legacy=False)
        elif isinstance(one, torch.Generator):
            yield one.get_state()
        elif isinstance(one, dict):
            yield from (part for pair in one.items() for part in pair)
            yield from self._attributes(one)
        elif isinstance(one, _ORDERED):
            yield from one
            yield from self._attributes(one)
        elif isinstance(one, set | frozenset):
            yield len(one)
            yield sum(_scalar(each, self._unknown) for each in one)
        elif isinstance(one, (types.ModuleType, types.CodeType, *_CODE)):
            self._module(one)
        elif isinstance(
            one, torch.dtype | torch.device | np.dtype | PurePath | range | slice | Enum
        ):
            self._add(repr(one))
        elif isinstance(one, np.generic | np.ufunc | property | staticmethod | classmethod):
            yield from _wrapped(one)
        elif isinstance(one, types.FunctionType):
            yield from self._function(one)
        elif isinstance(one, types.MethodType):
            yield from (one.__func__, one.__self__)
        elif isinstance(one, CACHE):
            cached: Any = one
            yield from (cached.__wrapped__, tuple(cached.cache_info()))
        elif isinstance(one, functools.partial):
            yield from (one.func, one.args, one.keywords)
        elif isinstance(one, type):
            yield from self._class(one)
        else:
            yield from self._object(one)

    def _numbers(self, data: np.ndarray[Any, Any]) -> None:
        self._bytes += data.nbytes
        self._digest = zlib.crc32(data.data, self._digest)

    def _module(self, one: Any) -> None:
        # Of a user's module counts what is named; of one of a library nothing.
        self._add(str(getattr(one, "__name__", getattr(one, "co_name", ""))))

    def _function(self, one: types.FunctionType) -> Iterator[Any]:
        self._add(f"{one.__module__} {one.__qualname__}")
        if kind_of(one.__code__.co_filename) != "user":
            if one.__closure__ is None:
                return
        else:
            self._code(one.__code__)
        for cell in one.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:
                yield None
        yield from (one.__defaults__, one.__kwdefaults__, vars(one))

    def _code(self, code: types.CodeType) -> None:
        self._digest = zlib.crc32(code.co_code, self._digest)
        if not _BY_NAME.isdisjoint(code.co_names):
            raise self._unknown(f"code that reads variables without naming them ({code.co_name})")
        self._reads_main |= not _MAIN.isdisjoint(code.co_names)
        for name, variable in names_in(code):
            (self._variables if variable else self._attributes_read).add(name)
        for one in code.co_consts:
            if isinstance(one, types.CodeType):
                self._code(one)

    def _class(self, one: type) -> Iterator[Any]:
        self._add(class_name(one))
        if not of_user(one):
            return
        yield from one.__mro__[1:]
        for name, held in sorted(vars(one).items()):
            if callable(held) or not name.startswith(("__", "_abc_")):
                yield from (name, held)

    def _attributes(self, one: Any) -> Iterator[Any]:
        held = getattr(one, "__dict__", None)
        if held:
            yield held
        if type(one).__module__ != "builtins":
            yield type(one)

    def _object(self, one: Any) -> Iterator[Any]:
        kind = type(one)
        yield kind
        held = getattr(one, "__dict__", None)
        names = slots(kind) if of_user(kind) else []
        plain = kind.__module__.startswith("torch") or kind.__reduce_ex__ is object.__reduce_ex__
        if isinstance(held, dict) and (plain or of_user(kind)):
            yield dict(held)
        elif not names:
            try:
                yield pickle_digest(one)
            except Exception:
                raise self._unknown(f"a {class_name(kind)}, which cannot be compared") from None
        for name in names:
            yield from (name, getattr(one, name, None))


def _scalar(value: Any, unknown: Any) -> int:
    if type(value) in SCALARS:
        return zlib.crc32(repr(value).encode("utf-8", "surrogatepass"))
    if isinstance(value, tuple):
        return zlib.crc32(repr([_scalar(one, unknown) for one in value]).encode())
    raise unknown("a set of objects, which cannot be compared")


def _wrapped(one: Any) -> tuple[Any, ...]:
    if isinstance(one, property):
        return one.fget, one.fset, one.fdel
    if isinstance(one, staticmethod | classmethod):
        return (one.__func__,)
    return (repr(one),)
