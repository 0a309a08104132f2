"""Tensors inside the arguments and results of a call: lists, tuples, mappings and dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, cast

from torch import Tensor

_DEPTH = 8
_PLAIN = str | bytes | int | float | complex | bool | None


def tensors(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """Every tensor, in a fixed order."""
    if isinstance(value, Tensor):
        yield value
    elif depth < _DEPTH:
        for _, inner in members(value):
            yield from tensors(inner, depth + 1)


def changed(value: Any, change: Callable[[Any], Any], depth: int = 0) -> Any:
    """A copy with every tensor, and every list without tensors, put through ``change``.

    What is none of the known containers goes in as it is.
    """
    if isinstance(value, Tensor) or _plain_list(value):
        return change(value)
    found = list(members(value)) if depth < _DEPTH else []
    if not found:
        return value
    new = {key: changed(inner, change, depth + 1) for key, inner in found}
    if isinstance(value, list):
        return type(value)(new.values()) if type(value) is list else list(new.values())
    if isinstance(value, tuple):
        kind: Any = cast("type[Any]", type(cast("Any", value)))
        return kind(*new.values()) if hasattr(kind, "_fields") else kind(new.values())
    made = copy.copy(value)
    for key, inner in new.items():
        if isinstance(made, MutableMapping):
            made[key] = inner
        else:
            object.__setattr__(made, cast("str", key), inner)
    return made


def hidden(value: Any, depth: int = 0) -> str:
    """The class of an object that holds tensors where they are not found; empty for none."""
    if isinstance(value, Tensor) or depth >= _DEPTH:
        return ""
    found = list(members(value))
    if found or isinstance(value, list | tuple | MutableMapping):
        return next(filter(None, (hidden(inner, depth + 1) for _, inner in found)), "")
    kept = getattr(value, "__dict__", {})
    held = any(isinstance(inner, Tensor) for inner in kept.values())
    return type(value).__name__ if held else ""


def members(value: Any) -> Iterator[tuple[Any, Any]]:
    """What a container holds, by index, key or name; nothing for what is none."""
    if isinstance(value, _PLAIN):
        return
    if isinstance(value, MutableMapping):
        yield from list(cast("MutableMapping[Any, Any]", value).items())
    elif isinstance(value, list | tuple):
        yield from enumerate(cast("list[Any]", value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name, None)


def _plain_list(value: Any) -> bool:
    """A list of texts, numbers or objects, perhaps one for each sample."""
    return isinstance(value, list) and next(tensors(value), None) is None
