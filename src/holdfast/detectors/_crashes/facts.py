"""What was recorded of a crash, as the rules read it; fields of the wrong type are ignored."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ...types import place_words


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why a script crashed in a few words, and what to do about it."""

    headline: str
    advice: str
    row: int = -1
    """Row of the batch whose sample is to blame; -1 for none."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the user's code that has to do with the crash."""

    name: str = ""
    file: str = ""
    line: int = 0
    code: str = ""
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def where(self) -> str:
        """``model.py:12`` without folders; empty where unknown."""
        return place_words(base_name(self.file), self.line) if self.line else ""

    @property
    def quoted(self) -> str:
        """Its code within a sentence: without the colon or comma at its end."""
        return self.code.rstrip(",: ")

    def told(self) -> str:
        """`` (model.py:12: x = pool(x))`` for the end of a phrase."""
        return f" ({self.where}: {clip(self.quoted, 60)})" if self.where else ""


@dataclass(frozen=True, kw_only=True)
class Value:
    """A value of the failing line: a tensor, a module, or something plain."""

    name: str
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    device: str = ""
    grad: bool = False
    made_by: str = ""
    lowest: int | None = None
    highest: int | None = None
    lowest_row: int = -1
    highest_row: int = -1
    module: str = ""
    text: str = ""
    """A module as torch prints it, a plain value as python does."""
    type: str = ""
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    lists: tuple[str, ...] = ()
    """Attributes in which a module hides others from torch: plain lists and dictionaries."""
    made: Line = field(default_factory=Line)
    """The line that makes a module."""
    parts: tuple[tuple[str, int], ...] = ()
    """Bytes of tensors in the entries of a dictionary, the largest first."""

    @property
    def size(self) -> str:
        """The shape as ``(32, 10)``."""
        return shown(self.shape or ())

    @property
    def label(self) -> str:
        """A module by its path and its class."""
        return self.name if self.name == self.module else f"{self.name} ({self.module})"

    @property
    def whole(self) -> bool:
        """Whether it is a tensor of whole numbers."""
        return self.shape is not None and self.dtype.startswith(("int", "uint"))


@dataclass(frozen=True, kw_only=True)
class Crash:
    """An exception that ended a script, with everything that was recorded of it."""

    data: Mapping[str, Any]

    @property
    def type(self) -> str:
        """Class of the exception."""
        return text(self.data.get("type")) or "an exception"

    @property
    def message(self) -> str:
        """What it says."""
        return text(self.data.get("message"))

    @property
    def place(self) -> Line:
        """The user's line."""
        return line_of(self.data)

    @property
    def phase(self) -> str:
        """``loading``, ``forward``, ``backward``, ``optimizer`` or empty."""
        return text(self.data.get("phase"))

    @property
    def operands(self) -> list[Value]:
        """The values on the failing line."""
        return values(self.data.get("operands"))

    @property
    def variables(self) -> list[Value]:
        """The variables of the failing function."""
        return values(self.data.get("variables"))

    @property
    def inner(self) -> list[Value]:
        """What the failing call of torch was given."""
        return values(mapping(self.data.get("inner")).get("values"))

    @property
    def inner_function(self) -> str:
        """The failing function of a library."""
        return text(mapping(self.data.get("inner")).get("function"))

    @property
    def module(self) -> Value | None:
        """The module of torch at work."""
        found = mapping(self.data.get("module"))
        return value(found) if found else None

    @property
    def tensors(self) -> list[Value]:
        """Tensors of the failing call first, then of the line, then of the function."""
        found = [*self.inner, *self.operands, *self.variables]
        return [each for each in found if each.shape is not None]

    def tensor(self, shape: Sequence[int]) -> Value | None:
        """A tensor of this shape, by the name that the user has for it where there is one."""
        for each in (*self.operands, *self.variables, *self.inner):
            if each.shape == tuple(shape):
                return each
        return None

    def find(self, pattern: str) -> re.Match[str] | None:
        """Search the message."""
        return re.search(pattern, self.message)

    def origin(self, name: str) -> Line:
        """The line that gave a name its value; empty where unknown."""
        for found in listed(self.data.get("origins")):
            if mapping(found).get("name") == name:
                return line_of(mapping(found))
        return Line()

    def first_origin(self) -> Line:
        """The line that made the first tensor of the failing line."""
        for each in self.operands:
            if each.shape is not None and (found := self.origin(each.name)).line:
                return found
        return Line()

    def lines(self, name: str) -> list[Line]:
        """Lines that were recorded under a name: carried, in_place, cuts."""
        return [line_of(mapping(found)) for found in listed(self.data.get(name))]

    def near(self) -> str:
        """The nearest existing name; empty where none is near."""
        found = listed(self.data.get("near"))
        return text(found[0]) if found else ""

    def akin(self) -> str:
        """``best_loss (float), best_weights (dict)``: existing names with a word in common."""
        pairs = [listed(each) for each in listed(self.data.get("akin"))]
        return ", ".join(f"{pair[0]} ({pair[1]})" for pair in pairs if len(pair) == 2)

    @property
    def sample(self) -> str:
        """``sample 481 (cat.png)``; empty where none is to blame."""
        index: object = self.data.get("sample")
        if index is None or isinstance(index, dict | list):
            return ""
        file = base_name(text(self.data.get("sample_file")))
        return f"sample {index}" + (f", {file}" if file else "")

    def blaming(self, row: int) -> Crash:
        """The same crash with the sample in a row of the batch at work to blame."""
        indices = listed(self.data.get("indices"))
        if self.sample or not 0 <= row < len(indices):
            return self
        file = text(mapping(self.data.get("files")).get(str(row)))
        return Crash(data={**self.data, "sample": indices[row], "sample_file": file})


def value(data: Mapping[str, Any]) -> Value:
    """One recorded value."""
    shape: object = data.get("shape")
    sizes = [s for s in listed(shape) if isinstance(s, int)]
    weights = {
        str(name): tuple(s for s in listed(size) if isinstance(s, int))
        for name, size in mapping(data.get("weights")).items()
    }
    return Value(
        name=text(data.get("name")),
        shape=tuple(sizes) if isinstance(shape, list | tuple) else None,
        dtype=text(data.get("dtype")),
        device=text(data.get("device")),
        grad=data.get("grad") is True,
        made_by=text(data.get("made_by")),
        lowest=whole(data.get("min")),
        highest=whole(data.get("max")),
        lowest_row=whole(data.get("min_row"), -1) or 0,
        highest_row=whole(data.get("max_row"), -1) or 0,
        module=text(data.get("module")),
        text=text(data.get("repr")) or text(data.get("value")),
        type=text(data.get("type")),
        weights=weights,
        lists=tuple(map(str, listed(data.get("lists")))),
        made=line_of(mapping(data.get("made"))),
        parts=tuple((text(p[0]), p[1]) for p in listed(data.get("parts")) if len(listed(p)) == 2),
    )


def values(given: object) -> list[Value]:
    """A list of them."""
    return [value(mapping(each)) for each in listed(given) if mapping(each)]


def line_of(data: Mapping[str, Any]) -> Line:
    """A recorded line."""
    return Line(
        name=text(data.get("name")),
        file=text(data.get("file")),
        line=whole(data.get("line")) or 0,
        code=" ".join(text(data.get("code")).split()),
        about=data,
    )


def numbers(given: str) -> tuple[int, ...]:
    """The whole numbers in a text: ``[2, 3]``, ``2x3``, ``torch.Size([4])``."""
    return tuple(map(int, re.findall(r"-?\d+", given)))


def shown(shape: Sequence[int]) -> str:
    """A shape as python writes it."""
    return str(tuple(shape))


def product(sizes: Sequence[int]) -> int:
    """How many values a shape has."""
    return math.prod(sizes)


def base_name(file: str) -> str:
    """A path without its folders."""
    return re.split(r"[/\\]", file)[-1]


def clip(given: str, limit: int) -> str:
    """At most so many characters."""
    return given if len(given) <= limit else f"{given[: limit - 1]}…"


def text(given: object) -> str:
    """A text; empty for anything else."""
    return given if isinstance(given, str) else ""


def whole(given: object, missing: int | None = None) -> int | None:
    """A whole number."""
    return given if isinstance(given, int) and not isinstance(given, bool) else missing


def mapping(given: object) -> Mapping[str, Any]:
    """A mapping; empty for anything else."""
    return cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {}


def listed(given: object) -> Sequence[Any]:
    """A list; empty for anything else."""
    return cast("list[Any]", given) if isinstance(given, list | tuple) else []
