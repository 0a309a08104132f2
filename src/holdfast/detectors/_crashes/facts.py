"""What was recorded of a crash, as the rules read it: in words, and with what follows from it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ...records.crash import CodeLine, CrashValue, RaisedException
from ...types import place_words

L = TypeVar("L", bound=CodeLine)


@dataclass(frozen=True, kw_only=True)
class CrashCause:
    """Why a script crashed in a few words, and what to do about it."""

    headline: str
    advice: str
    row: int = -1
    """Row of the batch whose sample is to blame; -1 for none."""


@dataclass(frozen=True, kw_only=True)
class CrashLine(Generic[L]):
    """A line of the user's code that has to do with the crash."""

    about: L
    """What was recorded of it."""

    @property
    def name(self) -> str:
        """The variable, attribute or optimizer that it is about."""
        return self.about.name or ""

    @property
    def file(self) -> str:
        """Its file; empty where unknown."""
        return self.about.file or ""

    @property
    def line(self) -> int:
        """Its number; 0 where unknown."""
        return self.about.line or 0

    @property
    def code(self) -> str:
        """The statement in one line."""
        return " ".join((self.about.code or "").split())

    @property
    def where(self) -> str:
        """``model.py:12`` without folders; empty where unknown."""
        return place_words(base_name(self.file), self.line) if self.line else ""

    @property
    def quoted(self) -> str:
        """Its code within a sentence: without the colon or comma at its end."""
        return self.code.rstrip(",: ")

    def reported(self) -> str:
        """`` (model.py:12: x = pool(x))`` for the end of a phrase."""
        return f" ({self.where}: {clip(self.quoted, 60)})" if self.where else ""


@dataclass(frozen=True, kw_only=True)
class LineValue:
    """A value of the failing line: a tensor, a module, or something plain."""

    name: str
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    device: str = ""
    grad: bool = False
    made_by: str = ""
    lowest: int | None = None
    """Smallest value of a tensor of whole numbers."""
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
    made: CrashLine[CodeLine] = CrashLine(about=CodeLine())
    """The line that makes a module."""
    parts: tuple[tuple[str, float], ...] = ()
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

    data: RaisedException

    @property
    def type(self) -> str:
        """Class of the exception."""
        return self.data.type or "an exception"

    @property
    def message(self) -> str:
        """What it says."""
        return self.data.message

    @property
    def place(self) -> CrashLine[CodeLine]:
        """The user's line."""
        data = self.data
        return CrashLine(about=CodeLine(file=data.file, line=data.line, code=data.code))

    @property
    def phase(self) -> str:
        """``loading``, ``forward``, ``backward``, ``optimizer`` or empty."""
        return self.data.phase or ""

    @property
    def library(self) -> str:
        """File and line inside of a library where it was raised, with slashes."""
        return (self.data.library or "").replace("\\", "/")

    @property
    def operands(self) -> list[LineValue]:
        """The values on the failing line."""
        return values(self.data.operands)

    @property
    def variables(self) -> list[LineValue]:
        """The variables of the failing function."""
        return values(self.data.variables)

    @property
    def inner(self) -> list[LineValue]:
        """What the failing call of torch was given."""
        return values(self.data.inner.values) if self.data.inner else []

    @property
    def inner_function(self) -> str:
        """The failing function of a library."""
        return self.data.inner.function if self.data.inner else ""

    @property
    def module(self) -> LineValue | None:
        """The module of torch at work."""
        return value(self.data.module) if self.data.module else None

    @property
    def tensors(self) -> list[LineValue]:
        """Tensors of the failing call first, then of the line, then of the function."""
        found = [*self.inner, *self.operands, *self.variables]
        return [each for each in found if each.shape is not None]

    def tensor(self, shape: Sequence[int]) -> LineValue | None:
        """A tensor of this shape, by the name that the user has for it where there is one."""
        for each in (*self.operands, *self.variables, *self.inner):
            if each.shape == tuple(shape):
                return each
        return None

    def find(self, pattern: str) -> re.Match[str] | None:
        """Search the message."""
        return re.search(pattern, self.message)

    def origin(self, name: str) -> CrashLine[CodeLine]:
        """The line that gave a name its value; empty where unknown."""
        found = (line for line in self.data.origins or () if line.name == name)
        return CrashLine(about=next(found, CodeLine()))

    def first_origin(self) -> CrashLine[CodeLine]:
        """The line that made the first tensor of the failing line."""
        for each in self.operands:
            if each.shape is not None and (found := self.origin(each.name)).line:
                return found
        return CrashLine(about=CodeLine())

    def near(self) -> str:
        """The nearest existing name; empty where none is near."""
        return next(iter(self.data.near or ()), "")

    def akin(self) -> str:
        """``best_loss (float), best_weights (dict)``: existing names with a word in common."""
        return ", ".join(f"{name} ({kind})" for name, kind in self.data.akin or ())

    @property
    def sample(self) -> str:
        """``sample 481 (cat.png)``; empty where none is to blame."""
        index = self.data.sample
        if index is None or isinstance(index, dict | list):
            return ""
        file = base_name(self.data.sample_file or "")
        return f"sample {index}" + (f", {file}" if file else "")

    def blaming(self, row: int) -> Crash:
        """The same crash with the sample in a row of the batch at work to blame."""
        indices = self.data.indices or ()
        if self.sample or not 0 <= row < len(indices):
            return self
        file = (self.data.files or {}).get(str(row), "")
        return Crash(data=self.data.replace(sample=indices[row], sample_file=file))


def value(given: CrashValue) -> LineValue:
    """One recorded value."""
    return LineValue(
        name=given.name,
        shape=given.shape,
        dtype=given.dtype or "",
        device=given.device or "",
        grad=given.grad is True,
        made_by=given.made_by or "",
        lowest=whole(given.min),
        highest=whole(given.max),
        lowest_row=-1 if given.min_row is None else given.min_row,
        highest_row=-1 if given.max_row is None else given.max_row,
        module=given.module or "",
        text=given.repr or given.value or "",
        type=given.type or "",
        weights=given.weights or {},
        lists=given.lists or (),
        made=CrashLine(about=given.made or CodeLine()),
        parts=given.parts or (),
    )


def values(given: Sequence[CrashValue] | None) -> list[LineValue]:
    """A list of them."""
    return [value(each) for each in given or ()]


def lines(given: Sequence[L] | None) -> list[CrashLine[L]]:
    """A list of recorded lines."""
    return [CrashLine(about=each) for each in given or ()]


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


def whole(given: Any) -> int | None:
    """A whole number; None for any other value."""
    return given if isinstance(given, int) and not isinstance(given, bool) else None
