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

from .nodes import KIND, Node, class_name, class_named

_WRITTEN: dict[str, Any] = {
    "Decimal": decimal.Decimal,
    "Fraction": fractions.Fraction,
    "UUID": uuid.UUID,
}
CLASSES = (
    *(complex, enum.Enum, range, datetime.date, datetime.time, datetime.timedelta),
    *(decimal.Decimal, fractions.Fraction, uuid.UUID, pathlib.PurePath, torch.Size),
)
KINDS = frozenset(("complex", "enum", "range", "date", "written", "path", "size"))
"""Of their nodes."""


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


def restore(live: Any, node: Node, path: str) -> Any:
    """The value of a node of one of these kinds."""
    saved = node["v"]
    match node[KIND]:
        case "enum":
            return class_named(node["c"], path)[saved]
        case "complex":
            return complex(*saved)
        case "range":
            return range(*saved)
        case "date":
            kind: Any = getattr(datetime, node["c"])
            return kind(*saved) if node["c"] == "timedelta" else kind.fromisoformat(saved)
        case "path":
            return live if str(live) == saved else pathlib.Path(saved)
        case "size":
            return torch.Size(saved)
        case _:
            return _WRITTEN[node["c"]](saved)
