"""JSON lines that stay JSON when a number is not finite.

JSON has no NaN, and a reader that turns it into ``null`` hides the one value this project
exists to show. Here NaN and the infinities are written as the strings ``"NaN"``,
``"Infinity"`` and ``"-Infinity"``; ``float()`` reads each of them back, so callers that
want a number say ``float(value)`` and need no table.

    >>> encode({"loss": float("nan"), "steps": [1, float("-inf")]})
    b'{"loss":"NaN","steps":[1,"-Infinity"]}'
    >>> float(decode(b'{"loss":"NaN"}')["loss"])
    nan

A line exists once its newline does: whatever follows the last newline of a file is the
torn end of a write that was cut short, and is not read.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from holdfast.errors import RunFolderError
from holdfast.regular_files import open_regular, read_regular, remedy

LONGEST = 16 << 20
"""Bytes of a line or an object at most; ours are a thousand times shorter."""
DEEPEST = 100
"""Lists and objects within each other at most: whoever copies or prints a value calls itself."""
# Digits of a whole number: of more no float can be made.
_DIGITS = 300


@dataclass(frozen=True, slots=True)
class JsonLines:
    """What a file of JSON lines held: the objects, the lines lost, where reading ended.

    ``end`` is the byte behind the last complete line: the place to go on from later.
    ``unread`` counts the lines that the reader did not want.
    """

    objects: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    corrupt: int = 0
    end: int = 0
    unread: int = 0


def encode(value: Any, *, indent: int | None = None) -> bytes:
    """Write ``value`` as one JSON text (no newline at its end), non-finite numbers as strings.

    A value JSON has no form for is a ``TypeError``; numpy numbers and arrays have one.
    """
    separators = (",", ":") if indent is None else None
    try:
        # Nearly everything is plain and finite: one pass in C, nothing copied.
        text = json.dumps(value, allow_nan=False, separators=separators, indent=indent)
    except (TypeError, ValueError):
        plain = _plain(value)
        text = json.dumps(plain, allow_nan=False, separators=separators, indent=indent)
    # ASCII only: no byte of a line can be the middle of a character, and file names that
    # are no valid Unicode (lone surrogates) still go through.
    return text.encode("ascii")


class TooDeepError(ValueError):
    """Lists in lists, beyond what anybody records."""

    def __init__(self) -> None:
        super().__init__(f"nested more than {DEEPEST} deep")


def decode(text: bytes, *, once: bool = False) -> dict[str, Any]:
    """Read one JSON object; anything else, bare NaN included, is a ``ValueError``.

    With ``once`` a key that stands twice in an object is one, too: two readers might take the one
    and the other. (Of the lines of a stream the last counts; asking there would cost a third.)
    """
    hook = pairs_once if once else None
    try:
        value: Any = json.loads(
            text, parse_constant=_refuse, parse_int=_whole, object_pairs_hook=hook
        )
    except RecursionError as error:
        raise TooDeepError from error
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {type(value).__name__}")
    # What has fewer brackets than that is not so deep: nearly every line is known by it.
    if text.count(b"{") + text.count(b"[") > DEEPEST and _is_deep(value):
        raise TooDeepError
    return cast("dict[str, Any]", value)


def pairs_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON as a dict; a ``ValueError`` where a key stands twice in it."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:80]!r} stands twice in it")
    return found


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            child
            for one in level
            if isinstance(one, dict | list)
            for child in cast("Iterable[Any]", one.values() if isinstance(one, dict) else one)
        ]
    return any(isinstance(one, dict | list) for one in level)


def line(item: Mapping[str, Any]) -> bytes:
    """One object as one line, to be appended with a single write (``durable.Appender``)."""
    return encode(item) + b"\n"


def read_lines(
    path: Path,
    start: int = 0,
    stop: int | None = None,
    wanted: Callable[[bytes], bool] | None = None,
) -> JsonLines:
    """Read the complete lines between two byte offsets; a missing file has none.

    A garbage last line is skipped in silence, as it is what a crash leaves; garbage
    further up is skipped and counted in ``corrupt``, and so is what is nested too deeply.
    """
    objects: list[dict[str, Any]] = []
    corrupt = torn = unread = 0
    end = start
    for text in whole_lines(path, start, stop):
        end += len(text) + 1
        corrupt, torn = corrupt + torn, 0
        if wanted is not None and not wanted(text):
            unread += 1
            continue
        try:
            objects.append(decode(text))
        except TooDeepError:
            corrupt += 1
        except ValueError:
            torn = 1
    return JsonLines(objects, corrupt, end, unread)


def whole_lines(path: Path, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """The lines between two byte offsets, without their newlines, as far as they are complete.

    None of them is longer than ``LONGEST``: one that is ends the reading with an error, before it
    fills the memory.
    """
    left = LONGEST + 1 if stop is None else stop - start
    try:
        with open_regular(path) as file:
            file.seek(start)
            while (text := file.readline(min(LONGEST + 1, left))).endswith(b"\n"):
                if stop is not None:
                    left -= len(text)
                yield text[:-1]
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunFolderError(
            f"cannot read {path.name}: {error.strerror}, in {path.parent}; {remedy(error)}"
        ) from error
    if len(text) > LONGEST:
        raise RunFolderError(
            f"{path.name} has a line of more than {LONGEST >> 20} MiB, in {path.parent}; "
            "nothing of ours writes such lines: move the file away to read the rest of the run"
        )


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object; may raise ``OSError`` and ``ValueError``."""
    return decode(read_regular(path, LONGEST), once=True)


def _plain(value: Any) -> Any:
    """Copy ``value`` with every number in a form that JSON has."""
    # Where nobody has imported numpy nothing is an array; it takes as long as all of ours.
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic | numpy.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value).items()
        return {_plain(key): _plain(item) for key, item in pairs}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("list[Any]", value)]
    return value


def _refuse(token: str) -> Any:
    raise ValueError(f"{token} is not JSON; it is written as a string here")


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)
