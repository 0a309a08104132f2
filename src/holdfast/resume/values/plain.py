"""Plain values that JSON does not know, there and back: dates, paths, members of enumerations."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import pathlib
import uuid
from typing import Any

import torch

from .nodes import KIND, Node, class_name

_WRITTEN: dict[str, Any] = {
    "Decimal": decimal.Decimal,
    "Fraction": fractions.Fraction,
    "UUID": uuid.UUID,
}
_DATES: dict[str, Any] = {
    one.__name__: one for one in (datetime.date, datetime.datetime, datetime.time)
}
_LONGEST = 4300
"""Characters of a written number: Python reads no longer ones as whole numbers."""
CLASSES = (
    *(complex, enum.Enum, range, datetime.date, datetime.time, datetime.timedelta),
    *(decimal.Decimal, fractions.Fraction, uuid.UUID, pathlib.PurePath, torch.Size),
)
KINDS = frozenset(("complex", "range", "date", "written", "path", "size"))
"""Of their nodes, members of enumerations aside."""


def take(value: Any, path: str) -> Node:
    """The node of a value of one of these classes."""
    match value:
        case enum.Enum():
            return {KIND: "enum", "c": class_name(type(value)), "v": value.name}
        case complex():
            return {KIND: "complex", "v": [value.real, value.imag]}
        case range():
            return {KIND: "range", "v": [value.start, value.stop, value.step]}
        case datetime.timedelta():
            parts = [value.days, value.seconds, value.microseconds]
            return {KIND: "date", "c": "timedelta", "v": parts}
        case datetime.date() | datetime.time():
            return {KIND: "date", "c": type(value).__name__, "v": value.isoformat()}
        case pathlib.PurePath():
            return {KIND: "path", "v": str(value)}
        case torch.Size():
            return {KIND: "size", "v": list(value)}
        case _:
            return {KIND: "written", "c": type(value).__name__, "v": str(value)}


def restore(live: Any, node: Node) -> Any:
    """The value of a node of one of these kinds; an error where its parts are of other types."""
    saved = node["v"]
    match node[KIND]:
        case "complex":
            return complex(*_all(float, saved))
        case "range":
            return range(*_all(int, saved))
        case "date" if node["c"] == "timedelta":
            return datetime.timedelta(*_all(int, saved))
        case "date":
            return _DATES[node["c"]].fromisoformat(saved)
        case "path":
            same = isinstance(live, pathlib.PurePath) and str(live) == saved
            return live if same else pathlib.Path(saved)
        case "size":
            return torch.Size(_all(int, saved))
        case _:
            if len(saved) > _LONGEST or (node["c"] == "Fraction" and "e" in saved.lower()):
                raise ValueError(f"a {node['c']} of that size")
            return _WRITTEN[node["c"]](saved)


def _all(kind: type, values: Any) -> list[Any]:
    if any(type(one) is not kind for one in values):
        raise TypeError(f"numbers of type {kind.__name__} are missing")
    return list(values)
