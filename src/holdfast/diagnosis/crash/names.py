"""Names that a misspelt one may have meant: variables, attributes, keys, files."""

from __future__ import annotations

import ast
import difflib
import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from ...records.crash import RaisedException
from ...redaction import redact_text
from .operands import known, value_of
from .traceback_frames import TracebackEntry
from .values import first_few, is_module

_KEYS = 40
_NUMBERS = 100_000
_AKIN = 4


def near(error: BaseException, call: TracebackEntry) -> RaisedException:
    """The nearest existing names, and the keys of a mapping without the one that was asked for."""
    if isinstance(error, NameError):
        scopes = (call.frame.f_locals, call.frame.f_globals, call.frame.f_builtins)
        name = str(getattr(error, "name", "") or "")
        return RaisedException(
            near=_closest(name, (n for s in scopes for n in s)),
            akin=_akin(name, call.frame.f_locals),
        )
    if isinstance(error, AttributeError):
        owner = getattr(error, "obj", None)
        name = str(getattr(error, "name", "") or "")
        return RaisedException(
            near=_closest(name, _attributes(owner)) if owner is not None else None,
            akin=_akin(name, getattr(owner, "__dict__", {})),
            owner=type(owner).__name__,
        )
    if isinstance(error, KeyError) and error.args:
        return _keys(error.args[0], call)
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
        folder, name = os.path.split(error.filename)
        if not os.path.isdir(folder or "."):
            return RaisedException(missing_folder=folder)
        return RaisedException(near=_closest(name, os.listdir(folder or ".")))
    return RaisedException()


def _attributes(owner: Any) -> list[str]:
    names = dir(owner) if is_module(owner) or not hasattr(type(owner), "__dir__") else []
    return names or [*getattr(owner, "__dict__", {}), *dir(type(owner))]


def _keys(wanted: object, call: TracebackEntry) -> RaisedException:
    for node in ast.walk(call.expression() or call.statement() or ast.Pass()):
        owner = value_of(node.value, call) if isinstance(node, ast.Subscript) else None
        if known(owner) and isinstance(owner, Mapping) and wanted not in owner:
            keys = first_few(iter(cast("Mapping[Any, Any]", owner)), _KEYS)
            same = [key for key in keys if str(key) == str(wanted)]
            found = RaisedException(
                keys=tuple(redact_text(repr(key)[:400])[:40] for key in keys),
                key_count=len(cast("Any", owner)),
            )
            if same:  # 1 and "1"
                return found.replace(near=(repr(same[0]),), other_type=True)
            if _is_number(wanted) and all(map(_is_number, keys)):
                ends, side = _of_numbers(cast("Mapping[Any, Any]", owner), wanted)
                return found.replace(numbers=ends, side=side)
            return found.replace(near=_closest(str(wanted), map(str, keys)))
    return RaisedException()


def _is_number(key: object) -> bool:
    """A number, or a text of one: such keys are counted, not misspelt."""
    try:
        return isinstance(key, int | float | str) and math.isfinite(float(key))
    except ValueError:
        return False


def _of_numbers(held: Mapping[Any, Any], wanted: Any) -> tuple[tuple[str, str] | None, str | None]:
    """The lowest and the highest key, and on which side of them the wanted one is."""
    keys = [key for key in first_few(iter(held), _NUMBERS) if _is_number(key)]
    if len(keys) < len(held):
        return None, None
    low, high = min(keys, key=float), max(keys, key=float)
    side = "above" if float(wanted) > float(high) else "below" if float(wanted) < float(low) else ""
    return (redact_text(repr(low)), redact_text(repr(high))), side


def _closest(name: str, others: Iterable[str]) -> tuple[str, ...] | None:
    if not name:
        return None
    others = sorted({other for other in others if other != name})
    found = [other for other in others if other.casefold() == name.casefold()]
    found += difflib.get_close_matches(name, others, n=2, cutoff=0.7)
    return tuple(dict.fromkeys(found)) or None


def _akin(name: str, held: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Names with a word in common, with their types: best_state and best_weights."""
    words = _words(name)
    found = [
        (-len(words & _words(other)), -difflib.SequenceMatcher(None, name, other).ratio(), other)
        for other in held
        if words & _words(other)
    ]
    return tuple((other, type(held[other]).__name__) for *_, other in sorted(found)[:_AKIN])


def _words(name: str) -> set[str]:
    """``bestLoss`` and ``best_loss`` have two words each; single letters are none."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)
    return {part.lower() for part in parts if len(part) > 1}
