"""What a checkpoint may name, make and write to: it decides values, never which code runs.

Who forges a file computes its digests, too. So nothing that a file names is imported or called:
classes are those that modules of the script define, objects of them are made without their
constructors, and what is code in the resumed script stays where the script has put it.
"""

from __future__ import annotations

import argparse
import collections
import enum
import functools
import io
import sys
import types
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ...source.ownership import kind_of
from ..refusal import RefusedError
from . import generators, plain
from .nodes import MISSING, SCALARS, class_name, holds_only_attributes, of_user, shown

_BY_NAME: dict[str, type] = {
    "argparse:Namespace": argparse.Namespace,
    "types:SimpleNamespace": types.SimpleNamespace,
}
_CODE = (
    *(types.ModuleType, type, types.CodeType, types.FrameType, types.CellType, io.IOBase),
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial),
    *(types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType),
    *(types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType),
    *(property, staticmethod, classmethod, weakref.ref, np.ufunc),
)
# These have kinds of nodes of their own: they are never filled attribute by attribute.
_NO_OBJECTS = (
    *(*_CODE, Tensor, np.ndarray, np.generic, nn.Module, Optimizer, DataLoader),
    *(*generators.CLASSES, *plain.CLASSES, torch.amp.GradScaler),
)
_BASES = (collections.OrderedDict, collections.defaultdict, dict, list)
_OF_MODULES = frozenset({*vars(nn.Module), *vars(nn.Module())}) - {"training"}
_OF_OPTIMIZERS = frozenset({*vars(Optimizer), "state", "param_groups", "defaults"})


# ---------------------------------------------------------------------- classes and objects


def class_named(name: Any, path: str) -> type:
    """A class that a file names: of the script's own, or one of two of Python's."""
    found = _BY_NAME.get(name) if isinstance(name, str) else None
    if found is None:
        found = _of_script(str(name))
    if found is None:
        raise RefusedError(f"{shown(path)} ({name}) is not there yet in the resumed run")
    return found


def _of_script(name: str) -> type | None:
    module, _, qualified = name.partition(":")
    home = sys.modules.get(module)
    if type(home) is not types.ModuleType:
        return None
    # No getattr: some modules import what they are asked for.
    held: Any = vars(home)
    if kind_of(str(held.get("__file__") or "")) != "user":
        return None
    found: Any = None
    for part in qualified.split("."):
        found = held.get(part)
        if not issubclass(type(found), type):
            return None
        held = vars(found)
    # What a module has only imported is not the script's.
    return found if class_name(found) == name else None


def named_tuple(live: Any, name: Any, count: int, path: str) -> type[tuple[Any, ...]]:
    """The class of a named tuple of so many fields, for ``tuple.__new__``."""
    kind: Any = type(live)
    if not isinstance(live, tuple) or class_name(kind) != name:
        kind = class_named(name, path)
    fields = static(kind, "_fields")
    if not issubclass(kind, tuple) or type(fields) is not tuple or len(fields) != count:
        raise RefusedError(f"{shown(path)} ({name}) is no named tuple of {count} fields")
    _check_deletion(kind, path)
    return kind


def member(live: Any, class_: Any, name: Any, path: str) -> enum.Enum:
    """A member of an enumeration, by its name."""
    kind: Any = type(live)
    if not isinstance(live, enum.Enum) or class_name(kind) != class_:
        kind = class_named(class_, path)
    found = vars(kind).get("_member_map_", {}).get(name) if issubclass(kind, enum.Enum) else None
    if found is None:
        raise RefusedError(f"{shown(path)} ({class_}) has no member {name} in the resumed run")
    return found


def new_object(name: Any, path: str) -> Any:
    """An object of a class that a file names, made without any method of that class."""
    kind = class_named(name, path)
    if name in _BY_NAME:
        return kind()
    base: Any = base_of(kind)
    plain_one = base is not object or holds_only_attributes(kind)
    if not plain_one or issubclass(kind, _NO_OBJECTS):
        raise RefusedError(f"{shown(path)} ({name}) is not there yet in the resumed run")
    _check_deletion(kind, path)
    return base.__new__(kind)


def _check_deletion(kind: type, path: str) -> None:
    # It would run with what the file has put into the object.
    if static(kind, "__del__") is not MISSING:
        text = "is not there yet in the resumed run, and its class has a __del__"
        raise RefusedError(f"{shown(path)} ({class_name(kind)}) {text}")


def base_of(kind: type) -> type:
    """The class of Python's own that keeps the items of objects of a class."""
    return next((base for base in _BASES if issubclass(kind, base)), object)


def may_be_filled(live: Any, *, few: bool) -> bool:
    """Whether a live object is what its attributes are, so that these can be set one by one."""
    kind = type(live)
    if isinstance(live, _NO_OBJECTS):
        return False
    if few or base_of(kind) is not object:
        return of_user(kind)
    return holds_only_attributes(kind)


# ---------------------------------------------------------------------- names and code


def static(kind: type, name: str) -> Any:
    """What a class has under a name, without asking any descriptor for it."""
    return next((vars(one)[name] for one in kind.__mro__ if name in vars(one)), MISSING)


def slot(kind: type, name: Any) -> Any:
    """The place of an attribute that is outside of the ``__dict__``; None for any other."""
    found = static(kind, name) if isinstance(name, str) else None
    return found if type(found) is types.MemberDescriptorType else None


def check_attribute(live: Any, name: Any, path: str) -> None:
    """Refuse to set what a class means as its behaviour: methods, properties, hooks."""
    kind = type(live)
    behaves = slot(kind, name) is None and is_code(static(kind, f"{name}"))
    if behaves or is_of_torch(live, name) or not is_name(name):
        raise RefusedError(f"{shown(path)}.{name} of a {kind.__name__} is not set by a checkpoint")


def is_of_torch(live: Any, name: Any) -> bool:
    """Whether torch keeps what it calls under this name: hooks, parameters, modules."""
    if isinstance(live, Optimizer):
        return name in _OF_OPTIMIZERS or "hook" in f"{name}"
    return isinstance(live, nn.Module) and name in _OF_MODULES


def is_name(name: Any) -> bool:
    """Whether a variable or an attribute of this name is the script's own."""
    return isinstance(name, str) and not name.startswith("__")


def is_code(value: Any) -> bool:
    """Whether a value is code, or a way to the outside."""
    if isinstance(value, _CODE):
        return True
    return callable(value) and not isinstance(value, nn.Module) and not of_user(type(value))


def check_key(value: Any, path: str) -> None:
    """Refuse what is hashed by a method of its own class, as a key of a dict or in a set."""
    if isinstance(value, tuple | frozenset) and type(value).__hash__ in _HASHES:
        for one in value:
            check_key(one, path)
    elif type(value).__hash__ not in _HASHES and not isinstance(value, _KEYS):
        raise RefusedError(f"{shown(path)} has a {class_name(type(value))} as a key or member")


_HASHES = {object.__hash__, tuple.__hash__, frozenset.__hash__, enum.Enum.__hash__}
_KEYS = (*SCALARS, *plain.CLASSES, np.generic, Tensor, nn.Module, torch.dtype, torch.device)
