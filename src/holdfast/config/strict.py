"""Strict loading of settings dataclasses from plain data; used by config/__init__.py.

It knows no setting by name: any dataclass that derives from ``Section`` and holds bool, int,
float, str, None, choices (``Literal``), tuples of these, further sections or mappings of names
to sections is read, checked and described by the same few functions.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, cast, get_args, get_origin, get_type_hints

from holdfast.config import yaml_values
from holdfast.errors import SettingsError

_TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_NONE = dataclasses.MISSING
_EXPONENT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+", re.ASCII)
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def bounded(
    default: float | None, low: float, high: float = math.inf, *, above: bool = False
) -> Any:
    """A field of a ``Section`` whose value must lie between ``low`` and ``high``.

    ``above``: ``low`` itself is no value either.
    """
    metadata = {"low": low, "high": high, "above": above}
    return dataclasses.field(default=default, metadata=metadata)


class Section:
    """Base of every settings dataclass: values given in Python obey the rules of a file."""

    short: ClassVar[str] = ""
    """The field that a bare value stands for where a mapping holds sections of this kind."""
    others: ClassVar[str] = ""
    """The field, a mapping, that holds sections which this one has no field for."""

    def __post_init__(self) -> None:
        for field, annotation in _fields(type(self)).values():
            value, source = getattr(self, field.name), type(self).__name__
            if _is_mapping(annotation):
                value = _entries(value, annotation, field, field.name, source, type(self))
            elif dataclasses.is_dataclass(annotation) and isinstance(value, Mapping):
                inside = cast(Mapping[Any, Any], value)
                value = build(annotation, inside, source, f"{field.name}.")
            else:
                value = _checked(value, annotation, field, field.name, source)
            object.__setattr__(self, field.name, value)

    def check_name(self, name: str) -> None:
        """Raise ``ValueError`` when this is not valid under that name in a mapping."""


class Word(str):
    """A value typed on the command line: its type is whatever its field asks for."""

    override: str


def build(
    kind: Any, data: Mapping[Any, Any], source: str, prefix: str = "", root: Any = None
) -> Any:
    """Make a ``kind`` from nested plain data; ``source`` says in errors where it came from."""
    known = _fields(kind)
    values: dict[str, Any] = {}
    others, data = _others(kind, data)
    for name, value in data.items():
        key = f"{prefix}{name}"
        if name not in known:
            raise SettingsError(describe_unknown(key, value, root or kind, source))
        field, annotation = known[name]
        if dataclasses.is_dataclass(annotation) and isinstance(value, Mapping | None):
            # None: a section all of whose lines are commented out.
            inside = cast(Mapping[Any, Any], value or {})
            values[name] = build(annotation, inside, source, f"{key}.", root or kind)
        elif _is_mapping(annotation):
            values[name] = _entries(value, annotation, field, key, source, root or kind)
        else:
            values[name] = _checked(value, annotation, field, key, source)
    if others:
        inside = _plain_sections(others, prefix.rstrip("."), source)
        values[kind.others] = {**values.get(kind.others, {}), **inside}
    for name, (field, _) in known.items():
        if name not in values and field.default is field.default_factory is _NONE:
            raise SettingsError(f"{source}: {prefix}{name} has no default and is missing; set it")
    try:
        return kind(**values)
    except ValueError as error:  # from a section's own check of values that clash
        place = prefix.rstrip(".") or "settings"
        raise SettingsError(f"{source}: {place} cannot be combined so: {error}") from None


def _others(kind: Any, data: Mapping[Any, Any]) -> tuple[dict[Any, Any], Mapping[Any, Any]]:
    """The sections that ``kind`` has no field for, where it takes such; and all the rest."""
    if not getattr(kind, "others", ""):
        return {}, data
    known = _fields(kind)
    others: dict[Any, Any] = {
        name: value
        for name, value in data.items()
        if name not in known and isinstance(value, Mapping)
    }
    return others, {name: value for name, value in data.items() if name not in others}


def _plain_sections(value: Any, key: str, source: str) -> dict[str, dict[str, Any]]:
    """A mapping of names to plain values by name; what they mean is checked by who knows them."""
    if not isinstance(value, Mapping | None):
        shown = reprlib.repr(value)
        raise SettingsError(f"{origin(value, source)}: {key} must be a section, not {shown}")
    found: dict[str, dict[str, Any]] = {}
    for name, given in cast(Mapping[Any, Any], value or {}).items():
        if not isinstance(given, Mapping | None):
            shown = reprlib.repr(given)
            raise SettingsError(
                f"{origin(given, source)}: {key}.{name} must be a section, not {shown}"
            )
        found[str(name)] = {str(n): v for n, v in cast(Mapping[Any, Any], given or {}).items()}
    return found


def put(kind: Any, data: dict[str, Any], path: Sequence[str], word: Word) -> None:
    """Set one nested value in plain data; a short form on the way becomes its section."""
    place, annotation = data, kind
    for i, name in enumerate(path):
        inner = _inside(annotation, name)
        short = getattr(inner, "short", "")
        found = place.get(name)
        if i == len(path) - 1:
            if short and isinstance(found, dict):
                cast(dict[str, Any], found)[short] = word
            else:
                place[name] = word
            return
        if found is None:
            found = {}
        elif short and not isinstance(found, dict):
            found = {short: found}
        if not isinstance(found, dict):
            raise SettingsError(
                f"override {word.override!r}: {name} is already set to {found!r}; "
                f"remove one of the two"
            )
        place[name] = found
        place, annotation = cast(dict[str, Any], found), inner


def unknown(
    kind: Any, data: Mapping[Any, Any], sections: Collection[str] = (), prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Every setting in nested plain data that ``kind`` does not have, with its value.

    ``sections`` are names of sections of others: what they hold is named one by one.
    """
    for name, value in data.items():
        key, annotation = f"{prefix}{name}", _inside(kind, name)
        if isinstance(value, Mapping) and (_has_inside(annotation) or key in sections):
            inside = cast(Mapping[Any, Any], value)
            yield from unknown(annotation, inside, sections, f"{key}.")
        elif annotation is None and name not in _others(kind, {name: value})[0]:
            yield key, value


def knows(kind: Any, key: str) -> bool:
    """Whether a dotted key is a setting or a section of ``kind``."""
    return _at(kind, key) is not None


def _at(kind: Any, key: str) -> Any:
    """The annotation under a dotted key; None: there is nothing."""
    for name in key.split("."):
        kind = _inside(kind, name)
    return kind


def _has_inside(annotation: Any) -> bool:
    return dataclasses.is_dataclass(annotation) or _is_mapping(annotation)


def _inside(annotation: Any, name: str) -> Any:
    """The annotation of what is called ``name`` in a section or a mapping; None: nothing is."""
    if dataclasses.is_dataclass(annotation):
        return _fields(cast(type, annotation)).get(name, (None, None))[1]
    return get_args(annotation)[1] if _is_mapping(annotation) else None


def _is_mapping(annotation: Any) -> bool:
    return get_origin(annotation) is Mapping


def _entries(
    value: Any, annotation: Any, field: dataclasses.Field[Any], key: str, source: str, root: Any
) -> dict[str, Any]:
    """A mapping of names to sections; each may be written as the value of its ``short`` field."""
    kind = get_args(annotation)[1]
    if _is_mapping(kind):
        return _plain_sections(value, key, source)
    if isinstance(value, str) and "whole" in field.metadata:
        value = {field.metadata["whole"]: value}
    if value is not None and not isinstance(value, Mapping):
        named = f"a section of names, each with {_described(kind).removeprefix('a section with ')}"
        shown = reprlib.repr(value)
        raise SettingsError(f"{origin(value, source)}: {key} must be {named}, not {shown}")
    found: dict[str, Any] = {}
    for name, given in cast(Mapping[Any, Any], value or {}).items():
        entry = given
        if not isinstance(entry, kind):
            inside = cast(
                Any, entry or {} if isinstance(entry, Mapping | None) else {kind.short: entry}
            )
            entry = build(kind, inside, source, f"{key}.{name}.", root)
        try:
            entry.check_name(str(name))
        except ValueError as error:
            raise SettingsError(f"{origin(given, source)}: {key}.{name}: {error}") from None
        found[str(name)] = entry
    return found


@cache
def _fields(kind: type) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    hints = get_type_hints(kind)
    return {field.name: (field, hints[field.name]) for field in dataclasses.fields(kind)}


def _checked(
    value: Any, annotation: Any, field: dataclasses.Field[Any], key: str, source: str
) -> Any:
    low, high = field.metadata.get("low", -math.inf), field.metadata.get("high", math.inf)
    above = field.metadata.get("above", False)
    if isinstance(value, str) and not isinstance(value, Word) and field.metadata.get("one"):
        value = [value]  # one word stands for a list of it
    try:
        converted = _converted(value, annotation)
        if isinstance(converted, int | float) and not (
            low <= converted <= high and not (above and converted == low)
        ):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        known = value is None or isinstance(value, bool)
        shown = json.dumps(value) if known else reprlib.repr(value)
        plain = not dataclasses.is_dataclass(annotation) and field.default is not _NONE
        hint = f"; the default is {json.dumps(field.default)}" if plain else ""
        expected = _limited(_described(annotation), low, high, above)
        source = origin(value, source)
        raise SettingsError(f"{source}: {key} must be {expected}, not {shown}{hint}") from None
    return converted


def _limited(expected: str, low: float, high: float, above: bool) -> str:
    if low == -math.inf:
        return expected
    start = f"above {low}" if above else f"of at least {low}" if high == math.inf else f"from {low}"
    end = "" if high == math.inf else f" {'up ' * above}to {high}"
    number, _, null = expected.partition(" or null")
    return f"{number} {start}{end}{null}{' or null' * (expected != number)}"


def _converted(value: Any, annotation: Any) -> Any:
    """The value as its field wants it; ``TypeError`` or ``ValueError`` where that fails."""
    kind, choices = get_origin(annotation), get_args(annotation)
    if kind in (Union, UnionType):
        # None first: the word null means nothing before it means text.
        for choice in sorted(choices, key=lambda choice: choice is not NoneType):
            try:
                return _converted(value, choice)
            except (TypeError, ValueError):
                continue
        raise TypeError
    if isinstance(value, Word):
        if annotation is str or (kind is Literal and value in choices):
            return str(value)
        if kind is tuple and not value.startswith("["):
            value = [Word(word.strip()) for word in value.split(",") if word.strip()]
        else:
            value = yaml_values.word(value)
    if kind is tuple:
        return _converted_items(value, choices)
    if annotation is bool and isinstance(value, str):
        value = _WORDS.get(value.lower(), value)
    if isinstance(value, bool) and annotation is not bool:  # to Python true is also the number 1
        raise TypeError
    if annotation is float and (isinstance(value, int) or _is_exponent(value)):
        value = float(value)
    fits = value in choices if kind is Literal else isinstance(value, annotation)
    if not fits or value != value:  # NaN is no setting
        raise TypeError
    return value


def _is_exponent(value: Any) -> bool:
    """Whether it is text such as 1e-4 or 1.5e3, which YAML 1.1 does not take for a number."""
    return isinstance(value, str) and _EXPONENT.fullmatch(value) is not None


def _converted_items(value: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError
    items = cast(Sequence[Any], value)
    each = kinds[:1] * len(items) if kinds[-1] is Ellipsis else kinds
    return tuple(_converted(item, kind) for item, kind in zip(items, each, strict=True))


def _described(annotation: Any) -> str:
    kind, choices = get_origin(annotation), get_args(annotation)
    if kind in (Union, UnionType):
        return " or ".join(_described(choice) for choice in choices)
    if kind is Literal:
        return "one of " + ", ".join(map(str, choices))
    if kind is tuple:
        size = "" if choices[-1] is Ellipsis else f"{len(choices)} × "
        return f"a list of {size}{_described(choices[0])}"
    if dataclasses.is_dataclass(annotation):
        return f"a section with {', '.join(_fields(cast(type, annotation)))}"
    return "null" if annotation is NoneType else _TYPES[annotation]


def origin(value: Any, source: str) -> str:
    """Where a value came from: the override that was typed, or else ``source``."""
    if isinstance(value, Mapping) and value:
        return origin(next(reversed(cast(dict[str, Any], value).values())), source)
    return f"override {value.override!r}" if isinstance(value, Word) else source


def _keys(kind: type, prefix: str = "") -> Iterator[str]:
    for name, (_, annotation) in _fields(kind).items():
        yield f"{prefix}{name}"
        if dataclasses.is_dataclass(annotation):
            yield from _keys(cast(type, annotation), f"{prefix}{name}.")


def describe_unknown(
    key: str, value: Any, root: Any, source: str, others: Sequence[str] = ()
) -> str:
    """One line about a key that ``root`` does not have: where it stands, and the nearest name.

    ``others`` are names that are understood beside those of ``root``.
    """
    hint = _nearest(key, root, others)
    return f"{origin(value, source)}: unknown setting {key!r}; {hint}"


def _nearest(key: str, root: Any, others: Sequence[str]) -> str:
    import difflib

    everywhere = list(_keys(root))
    if key in everywhere:
        return "in a file, write it as an indented line under its section"
    prefix, _, leaf = key.rpartition(".")
    start = f"{prefix}." if prefix else ""
    section = _at(root, prefix) if prefix else root
    here = (
        list(_fields(section))
        if isinstance(section, type) and dataclasses.is_dataclass(section)
        else []
    )
    inside = [name.removeprefix(start) for name in others if name.startswith(start)]
    here += [name for name in inside if "." not in name]
    same = [name for name in everywhere if name.rpartition(".")[2] == leaf]
    close = difflib.get_close_matches(leaf, here, n=1)
    near = same or [f"{start}{name}" for name in close]
    return f"did you mean {near[0]!r}?" if near else f"known here are {', '.join(here)}"
