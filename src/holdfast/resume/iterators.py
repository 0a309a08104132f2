"""Where iterators stand, as data, and how one of the same kind is put there.

An iterator keeps its identity: whoever else holds it sees the same. Where Python has no way to set
its place that is done in the memory of the object, which is checked before and after.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import itertools
import operator
import os
import re
import sys
from collections.abc import Callable
from types import FrameType, GeneratorType
from typing import Any

from ..source.frames import forget_locals
from ..source.ownership import kind_of
from ..source.paths import short_name
from .counters import set_counts
from .frames import put_locals
from .stacks import OF_DICTS, OF_LOADERS, OF_RANGES, OF_SEQUENCES, loops_of, replace, word
from .values.nodes import KIND, MISSING

Place = dict[str, Any]
_Take = Callable[[Any, str], Any]
_Value = Callable[[Any, Any, str], Any]
_HEAD = object.__basicsize__
_SEQUENCE = _HEAD + 8
"""In an iterator over a sequence: where it points to that, behind its index."""
_COUNT = re.compile(r"count\((-?\d+)\)")
_BARS = ("tqdm",)
"""Libraries whose generators hand on what they get, and count."""


class NoPlaceError(Exception):
    """The place of an iterator cannot be told; says why."""


def take(iterator: Any, path: str, taken: _Take) -> Place:
    """Where an iterator stands; what it reads from is taken by ``taken``."""
    kind = type(iterator)
    for kinds, row, _ in _ROWS:
        if kind in kinds:
            return {"i": kind.__name__, **row(iterator, path, taken)}
    if hasattr(kind, "__next__") and kind.__module__ in sys.modules:
        file = str(getattr(sys.modules[kind.__module__], "__file__", ""))
        if kind_of(file) == "user":
            return {"i": "object", "v": taken(iterator, path)}
    raise NoPlaceError(f" (a {kind.__name__})")


def put(iterator: Any, place: Place, path: str, value: _Value) -> None:
    """Put an iterator where another one of its kind stood; ``NoPlaceError`` where it is another."""
    kind = type(iterator)
    if place["i"] == "object":
        if value(iterator, place["v"], path) is not iterator:
            raise NoPlaceError(" (it is another object)")
        return
    for kinds, _, row in _ROWS:
        if kind in kinds and kind.__name__ == place["i"]:
            row(iterator, place, path, value)
            return
    raise NoPlaceError(f" (it is a {kind.__name__} in the resumed run)")


def shape(place: Place) -> Any:
    """What a resumed script must have of a place by itself: kinds, and where generators are."""
    inner = place["v"] if place["i"] in _HOLDERS else []
    several = inner if isinstance(inner, list) else [inner]
    return [place["i"], place.get("at", ""), *map(shape, several), *map(shape, place.get("y", ()))]


def _reduced(iterator: Any) -> tuple[Any, ...]:
    return iterator.__reduce__()


# ---------------------------------------------------------------------- ranges


def _take_range(iterator: Any, path: str, taken: _Take) -> Place:
    about = _reduced(iterator)
    left = about[1][0][about[2] if len(about) > 2 and about[2] else 0 :]
    return {"v": [left.start, left.step, len(left)]}


def _put_range(iterator: Any, place: Place, path: str, value: _Value) -> None:
    start, step, left = (int(one) for one in place["v"])
    # Until 3.11 there is an index before the three.
    first = _HEAD + (8 if sys.version_info < (3, 12) else 0)
    cells = [ctypes.c_long.from_address(first + id(iterator) + 8 * n) for n in range(3)]
    index = ctypes.c_long.from_address(id(iterator) + _HEAD) if first > _HEAD else None
    passed = 0 if index is None else index.value
    known = _take_range(iterator, path, lambda one, at: one)["v"]
    was = [cells[0].value + passed * cells[1].value, cells[1].value, cells[2].value - passed]
    if was != known or not step or left < 0 or max(map(abs, (start, step, left))) >> 62:
        raise NoPlaceError(" (this Python does not show it)")
    if index is not None:
        index.value = 0
    for cell, number in zip(cells, (start, step, left), strict=True):
        cell.value = number
    if _take_range(iterator, path, lambda one, at: one)["v"] != [start, step, left]:
        raise NoPlaceError(" (this Python does not let it be set)")


# ---------------------------------------------------------------------- sequences


def _take_sequence(iterator: Any, path: str, taken: _Take) -> Place:
    about = _reduced(iterator)
    if len(about) < 3:
        raise NoPlaceError(" (it is at its end)")
    return {"n": int(about[2]), "v": taken(about[1][0], path)}


def _put_sequence(iterator: Any, place: Place, path: str, value: _Value) -> None:
    about = _reduced(iterator)
    if len(about) < 3 or word(id(iterator) + _SEQUENCE) != id(about[1][0]):
        raise NoPlaceError(" (this Python does not show it)")
    held, made = about[1][0], value(about[1][0], place["v"], path)
    if type(made) is not type(held):
        raise NoPlaceError(f" (it is over a {type(held).__name__} in the resumed run)")
    if made is not held:
        replace(id(iterator) + _SEQUENCE, held, made)
    iterator.__setstate__(place["n"])
    after = _reduced(iterator)
    if after[1][0] is not made or after[2] != place["n"]:
        raise NoPlaceError(" (this Python does not let it be set)")


def _dict_of(iterator: Any) -> Any:
    held = [one for one in gc.get_referents(iterator) if isinstance(one, dict)]
    if len(held) != 1:
        raise NoPlaceError(" (it is at its end)")
    return held[0]


def _is_same(one: Any, other: Any) -> bool:
    if type(one) is tuple and type(other) is tuple:  # an item
        return all(map(operator.is_, one, other))
    return one is other


def _take_dict(iterator: Any, path: str, taken: _Take) -> Place:
    return {"n": iterator.__length_hint__(), "v": taken(_dict_of(iterator), path)}


def _put_dict(iterator: Any, place: Place, path: str, value: _Value) -> None:
    held = _dict_of(iterator)
    if value(held, place["v"], path) is not held:
        raise NoPlaceError(" (it reads another dict in the resumed run)")
    while iterator.__length_hint__() > place["n"]:
        next(iterator)
    left = _reduced(iterator)[1][0]
    views: tuple[Any, ...] = (held.keys(), held.items(), held.values())
    wanted = list(views[OF_DICTS.index(type(iterator))])[len(held) - place["n"] :]
    same = all(_is_same(*pair) for pair in zip(left, wanted, strict=False))
    if len(left) != place["n"] or len(left) != len(wanted) or not same:
        raise NoPlaceError(" (its dict was made in another order)")


# ---------------------------------------------------------------------- those that hold others


def _take_count(iterator: Any, path: str, taken: _Take) -> Place:
    match = _COUNT.fullmatch(repr(iterator))
    if match is None:
        raise NoPlaceError(" (it does not count up by one)")
    return {"n": int(match[1])}


def _put_count(iterator: Any, place: Place, path: str, value: _Value) -> None:
    cell = ctypes.c_ssize_t.from_address(id(iterator) + _HEAD)
    if _take_count(iterator, path, lambda one, at: one)["n"] != cell.value:
        raise NoPlaceError(" (this Python does not show it)")
    cell.value = int(place["n"])
    if repr(iterator) != f"count({place['n']})":
        raise NoPlaceError(" (this Python does not let it be set)")


def _take_enumerate(iterator: Any, path: str, taken: _Take) -> Place:
    inner, count = _reduced(iterator)[1]
    return {"n": count, "v": take(inner, path, taken)}


def _put_enumerate(iterator: Any, place: Place, path: str, value: _Value) -> None:
    put(_reduced(iterator)[1][0], place["v"], path, value)
    set_counts([iterator], [int(place["n"])])


def _take_zip(iterator: Any, path: str, taken: _Take) -> Place:
    inner = _reduced(iterator)[1]
    return {"v": [take(one, f"{path}[{n}]", taken) for n, one in enumerate(inner)]}


def _put_zip(iterator: Any, place: Place, path: str, value: _Value) -> None:
    inner = _reduced(iterator)[1]
    if len(inner) != len(place["v"]):
        raise NoPlaceError(" (it reads others in the resumed run)")
    for number, (one, then) in enumerate(zip(inner, place["v"], strict=True)):
        put(one, then, f"{path}[{number}]", value)


def _take_map(iterator: Any, path: str, taken: _Take) -> Place:
    function, *inner = _reduced(iterator)[1]
    places = [take(one, f"{path}[{n}]", taken) for n, one in enumerate(inner)]
    return {"f": taken(function, f"{path}.function"), "v": places}


def _put_map(iterator: Any, place: Place, path: str, value: _Value) -> None:
    function, *inner = _reduced(iterator)[1]
    if value(function, place["f"], f"{path}.function") is not function:
        raise NoPlaceError(" (it calls another function in the resumed run)")
    if len(inner) != len(place["v"]):
        raise NoPlaceError(" (it reads others in the resumed run)")
    for number, (one, then) in enumerate(zip(inner, place["v"], strict=True)):
        put(one, then, f"{path}[{number}]", value)


def _take_feed(iterator: Any, path: str, taken: _Take) -> Place:
    node = taken(iterator, path)
    if node is not None and (not isinstance(node, dict) or node[KIND] not in ("pass", "same")):
        raise NoPlaceError(" (it reads a loader)")
    return {"v": node}


def _put_feed(iterator: Any, place: Place, path: str, value: _Value) -> None:
    if value(iterator, place["v"], path) is not iterator:
        raise NoPlaceError(" (it reads another loader in the resumed run)")


# ---------------------------------------------------------------------- generators


def at(generator: GeneratorType[Any, Any, Any]) -> list[Any]:
    """Where a generator is: file, function and instruction."""
    code, frame = generator.gi_code, generator.gi_frame
    return [os.path.basename(code.co_filename), code.co_qualname, frame.f_lasti if frame else -1]


def _frame_of(generator: GeneratorType[Any, Any, Any]) -> tuple[FrameType, bool]:
    """The frame of a generator that waits, and whether it is one of a progress bar."""
    frame, file = generator.gi_frame, generator.gi_code.co_filename
    if frame is None or generator.gi_running:
        raise NoPlaceError(" (a generator that is over or at work)")
    bar = str(frame.f_globals.get("__name__")).split(".")[0] in _BARS
    if not bar and kind_of(file) != "user":
        raise NoPlaceError(f" (a generator of {short_name(file)})")
    return frame, bar


def _inside(generator: GeneratorType[Any, Any, Any], frame: FrameType) -> tuple[list[Any], Any]:
    """The iterators of the loops that a generator is in, and what it yields from."""
    if inspect.getgeneratorstate(generator) == inspect.GEN_CREATED:
        return [], None
    source = generator.gi_yieldfrom
    loops = loops_of(frame, 0, 0, more=int(source is not None))
    if any(one.cell for one in loops):
        raise NoPlaceError(" (its yield is a part of an expression)")
    return [one.iterator for one in loops], source


def _take_generator(generator: Any, path: str, taken: _Take) -> Place:
    frame, bar = _frame_of(generator)
    held = {} if bar else dict(frame.f_locals)
    forget_locals(frame)
    names = [name for name in held if name.isidentifier()]
    inner, source = _inside(generator, frame)
    return {
        "at": at(generator),
        "l": [[name, taken(held[name], f"{path}.{name}")] for name in names],
        "v": [take(one, f"{path}<{n}>", taken) for n, one in enumerate(inner)],
        "y": [] if source is None else [take(source, f"{path}<from>", taken)],
    }


def _put_generator(generator: Any, place: Place, path: str, value: _Value) -> None:
    frame, bar = _frame_of(generator)
    if at(generator) != place["at"]:
        raise NoPlaceError(" (its generator is at another yield in the resumed run)")
    held = dict(frame.f_locals)
    forget_locals(frame)
    if not bar:
        names = [name for name in held if name.isidentifier()]
        if not set(names) <= {name for name, _ in place["l"]}:
            raise NoPlaceError(" (its generator has other variables in the resumed run)")
        new = {
            name: value(held.get(name, MISSING), node, f"{path}.{name}")
            for name, node in place["l"]
            if name in generator.gi_code.co_varnames + generator.gi_code.co_cellvars
            or name in generator.gi_code.co_freevars
        }
        put_locals(frame, new)
    inner, source = _inside(generator, frame)
    there = [*inner, *([] if source is None else [source])]
    places = [*place["v"], *place["y"]]
    if len(there) != len(places):
        raise NoPlaceError(" (its generator is in other loops in the resumed run)")
    numbers = [*range(len(inner)), "from"]
    for number, one, then in zip(numbers, there, places, strict=False):
        put(one, then, f"{path}<{number}>", value)


_HOLDERS = {"enumerate", "zip", "map", "filter", "generator"}
_ROWS: tuple[tuple[tuple[Any, ...], Callable[..., Place], Callable[..., None]], ...] = (
    (OF_RANGES, _take_range, _put_range),
    (OF_SEQUENCES, _take_sequence, _put_sequence),
    (OF_DICTS, _take_dict, _put_dict),
    ((itertools.count,), _take_count, _put_count),
    ((enumerate,), _take_enumerate, _put_enumerate),
    ((zip,), _take_zip, _put_zip),
    ((map, filter), _take_map, _put_map),
    ((GeneratorType,), _take_generator, _put_generator),
    (OF_LOADERS, _take_feed, _put_feed),
)
