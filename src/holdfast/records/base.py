"""The shape of what two processes tell each other: a frozen record with named, typed fields.

Declared like a frozen dataclass, and seen as one by type checkers. ``dataclass`` itself takes
1.6 ms to make a class; there are over a hundred, in the start of every run.

>>> class Look(Kind, kind="look"):
...     seconds: float
...     lines: tuple[int, ...] = ()
>>> look = Look(seconds=0.5, lines=(3, 4))
>>> look.to_dict()
{'seconds': 0.5, 'lines': [3, 4]}
>>> Look.from_dict({"seconds": 0.5, "lines": [3, 4]}) == look
True
>>> Look.from_dict({"secs": 0.5})
Traceback (most recent call last):
holdfast.records.base.RecordError: look: no key 'seconds', and the unknown key 'secs'
"""

# pyright: standard
# It reads JSON of any form, which has no types.

from __future__ import annotations

import inspect
import sys
import time
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, dataclass_transform

from holdfast.types import Event

_REQUIRED = object()
# What JSON has only as a word (see ``run.jsonl``).
_WORDS = ("NaN", "Infinity", "-Infinity")
# A float holds every whole number up to here.
_MOST = 2**53


class RecordError(ValueError):
    """Data that are no record of this kind: what is missing, unknown or of another type."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Record:
    """Named, typed values that are written in one process and read in another.

    A field with a default may be missing in what is read: records of earlier versions lack it.
    ``earlier`` gives names that fields had before (new name by old one); those of fields that
    are gone stand for nothing (``""``).
    """

    earlier: ClassVar[Mapping[str, str]] = {}
    _defaults: ClassVar[Mapping[str, Any]] = {}
    """Each field with its default, in order."""
    _readers: ClassVar[Mapping[str, Callable[[Any], Any]] | None] = None
    """How each field is read; made when the first one is."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = {
            name: cls.__dict__.get(name, _REQUIRED)
            for name, annotation in inspect.get_annotations(cls).items()
            if not str(annotation).startswith(("ClassVar", "typing.ClassVar"))
        }
        # Of all bases: a record may be put together from several.
        inherited: dict[str, Any] = {}
        for base in reversed(cls.__mro__[1:]):
            inherited |= vars(base).get("_defaults", {})
        cls._defaults = {**inherited, **own}
        cls._readers = None

    def __init__(self, **values: Any) -> None:
        for name, default in self._defaults.items():
            value = values.pop(name, default)
            if value is _REQUIRED:
                raise TypeError(f"{type(self).__name__} needs {name}")
            self.__dict__[name] = value
        if values:
            raise TypeError(f"{type(self).__name__} has no {', '.join(values)}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} is frozen")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} is frozen")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({values})"

    def replace(self, **values: Any) -> Self:
        """The same record with other values."""
        return type(self)(**{**self.__dict__, **values})

    @classmethod
    def fields(cls) -> tuple[str, ...]:
        """Names of the fields, in order."""
        return tuple(cls._defaults)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {name: _plain(value) for name, value in self.__dict__.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read plain data back; a missing, unknown or odd key is a ``RecordError``."""
        readers = cls._made_readers()
        values: dict[str, Any] = {}
        unknown: list[str] = []
        for key, value in data.items():
            name = key if key in readers else cls.earlier.get(key)
            if name is None:
                unknown.append(key)
            elif name and (name == key or name not in data):
                try:
                    values[name] = readers[name](value)
                except RecordError as error:
                    raise RecordError(f"{cls._called()}: {key}: {error}") from None
        missing = [n for n, d in cls._defaults.items() if d is _REQUIRED and n not in values]
        if missing or unknown:
            raise RecordError(f"{cls._called()}: {_keys(missing, unknown)}")
        return cls(**values)

    @classmethod
    def _called(cls) -> str:
        return cls.__name__

    @classmethod
    def _made_readers(cls) -> Mapping[str, Callable[[Any], Any]]:
        if cls._readers is None:
            # Annotations of a base class are in the names of its module.
            hints: dict[str, Any] = {}
            for base in reversed(cls.__mro__[:-1]):
                names = {**vars(typing), **vars(sys.modules[base.__module__])}
                hints |= {
                    name: eval(text, names) if isinstance(text, str) else text
                    for name, text in inspect.get_annotations(base).items()
                    if name in cls._defaults
                }
            cls._readers = {name: _reader(hint) for name, hint in hints.items()}
        return cls._readers


class Kind(Record):
    """A kind of event: the data of an ``Event``, with the word that stands for them."""

    kind: ClassVar[str] = ""

    def __init_subclass__(cls, *, kind: str = "") -> None:
        super().__init_subclass__()
        if kind:
            cls.kind = kind

    @classmethod
    def of(cls, event: Event) -> Self | None:
        """What an event of this kind holds; None for another one, and for one that is none.

        Whoever judges has told of the latter: see ``records.fault``.
        """
        if event.kind != cls.kind:
            return None
        if event.record is not None:
            return event.record if isinstance(event.record, cls) else None
        try:
            return cls.from_dict(event.data)
        except RecordError:
            return None

    @classmethod
    def _called(cls) -> str:
        return cls.kind or cls.__name__


class Note(Kind):
    """What a script, a recipe or a plugin records: its own word, and any JSON.

    >>> note = Note("my_metric", {"value": 0.5})
    >>> note.kind, note.to_dict()
    ('my_metric', {'value': 0.5})
    """

    data: Mapping[str, Any]

    def __init__(self, kind: str, data: Mapping[str, Any]) -> None:
        self.__dict__.update(kind=kind, data=dict(data))

    def to_dict(self) -> dict[str, Any]:
        """The data, as they were given."""
        return dict(self.data)


def event_from(step: int, record: Kind, rank: int) -> Event:
    """The Event of a record, as of now."""
    return Event(time=time.time(), rank=rank, step=step, kind=record.kind, data=record.to_dict())


def _keys(missing: Sequence[str], unknown: Sequence[str]) -> str:
    words = [f"no key {name!r}" for name in missing[:3]]
    words += [f"the unknown key {name[:60]!r}" for name in unknown[:3]]
    return ", and ".join(words)


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


# ---------------------------------------------------------------------- how fields are read


def _reader(hint: Any) -> Callable[[Any], Any]:
    """How a value with this annotation is read from JSON."""
    if hint is Any:
        return lambda value: value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        return _plain_reader(hint)
    if origin in (typing.Union, types.UnionType):
        return _one_of([_reader(argument) for argument in arguments], hint)
    if origin is typing.Literal:
        return _literal(arguments)
    if origin is tuple and arguments[1:] != (Ellipsis,):
        return _row([_reader(argument) for argument in arguments])
    if origin in (tuple, Sequence):
        return _list_of(_reader(arguments[0]))
    if origin in (dict, Mapping):
        return _map_of(_reader(arguments[1]))
    raise TypeError(f"no field can be a {hint}")


def _plain_reader(hint: Any) -> Callable[[Any], Any]:
    if isinstance(hint, type) and issubclass(hint, Record):
        return _nested(hint)
    found = {
        float: _number, int: _whole, str: _text, bool: _truth, type(None): _nothing
    }.get(hint)  # fmt: skip
    if found is None:
        raise TypeError(f"no field can be a {hint}")
    return found


def _nested(record: type[Record]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _odd(value, "a record")
        return record.from_dict(value)

    return read


def _one_of(readers: Sequence[Callable[[Any], Any]], hint: Any) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        errors: list[RecordError] = []
        for reader in readers:
            try:
                return reader(value)
            except RecordError as error:
                errors.append(error)
        # Of "this or nothing" the first says what is wrong.
        raise errors[0] if len(errors) == 2 else _odd(value, str(hint))

    return read


def _literal(words: Sequence[Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if value not in words:
            raise _odd(value, f"one of {', '.join(map(str, words))}")
        return value

    return read


def _row(readers: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(readers):
            raise _odd(value, f"{len(readers)} values")
        return tuple(reader(item) for reader, item in zip(readers, value, strict=True))

    return read


def _list_of(reader: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _odd(value, "a list")
        return tuple(reader(item) for item in value)

    return read


def _map_of(reader: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _odd(value, "a mapping")
        return {str(key): reader(item) for key, item in value.items()}

    return read


def _number(value: Any) -> float:
    if isinstance(value, str) and value in _WORDS:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _odd(value, "a number")
    return float(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MOST:
        raise _odd(value, "a whole number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _odd(value, "a text")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _odd(value, "true or false")
    return value


def _nothing(value: Any) -> None:
    if value is not None:
        raise _odd(value, "nothing")


def _odd(value: Any, wanted: str) -> RecordError:
    return RecordError(f"{str(value)[:60]!r} is not {wanted}")
