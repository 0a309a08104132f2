"""State that no variable shows: caches of functions, variables of threads, places of iterators.

``functools`` shows the entries of a cache to the collector of garbage alone. They are put back by
calling the cached function with its own code set aside, oldest entry first.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import itertools
import re
import threading
import types
from collections.abc import Callable
from typing import Any, NoReturn

from ...source.ownership import kind_of
from .. import iterators
from ..refusal import RefusedError
from . import admitted
from .nodes import KIND, SCALARS, Node, Take, last_name, of_user, ref, shown
from .secrets import Secrets

CACHE: Any = functools._lru_cache_wrapper
_LISTED: tuple[Any, ...] = tuple(type(iter(one)) for one in ([], (), range(0), range(1 << 70), ""))
COUNTED = (itertools.count, *_LISTED)
"""Iterators whose place can be read and set."""
_COUNT = re.compile(r"count\((-?\d+)(?:, (-?\d+))?\)")
_LONGEST = 1 << 20
_MOST_HITS = 10_000_000
"""Calls of a cache that are counted up to again, a tenth of a microsecond each."""
_MOST_ROUNDS = 1 << 26
"""That a counter is turned on; further ones are made anew."""
_ANSWERS = "answers"

Value = Callable[[Any, Node, str], Any]


# ---------------------------------------------------------------------- caches


def take_cache(value: Any, path: str, take: Take) -> Node:
    """The entries of a function's ``lru_cache``, the oldest first."""
    function = value.__wrapped__
    if type(function) is not types.FunctionType or kind_of(function.__code__.co_filename) != "user":
        return ref(value)
    made = [["__wrapped__", take(function, f"{path}.__wrapped__")]]
    entries = _entries(value)
    if entries is None:
        text = "caches results in a way that this Python does not show; call its cache_clear() or "
        raise RefusedError(f"{shown(path)} {text}keep them in a dict")
    taken = [
        [
            take(list(args), f"{path}.key[{number}]"),
            take(named, f"{path}.named[{number}]"),
            take(result, f"{path}.result[{number}]"),
        ]
        for number, (args, named, result) in enumerate(entries)
    ]
    reported = value.cache_info()
    if reported.hits > _MOST_HITS:
        text = f"has answered {reported.hits:,} times, which a resumed run cannot count up to; "
        raise RefusedError(f"{shown(path)} {text}keep its results in a dict")
    counts = [reported.hits, reported.misses]
    return {KIND: "cached", "c": "cached function", "a": made, "v": taken, "n": counts}


def _entries(cached: Any) -> list[tuple[tuple[Any, ...], dict[str, Any], Any]] | None:
    """Arguments and result of each entry; None where they cannot be told."""
    count, held = cached.cache_info().currsize, gc.get_referents(cached)
    if not count:
        return []
    found = [one for one in held if type(one) is dict and one is not vars(cached)]
    if len(found) != 1 or len(found[0]) != count or cached.cache_parameters()["typed"]:
        return None
    pairs = list(found[0].items())
    if cached.cache_parameters()["maxsize"] is not None:
        # Those of a list, in the order in which they will be dropped.
        keys = {id(key) for key in found[0]}
        at = [i for i, one in enumerate(held) if id(one) in keys and isinstance(held[i - 1], type)]
        pairs = [(held[i], held[i + 1]) for i in at]
    return [(*_arguments(key), result) for key, result in pairs] if len(pairs) == count else None


def _arguments(key: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if type(key) is not tuple:
        return (key,), {}
    mark = next((i for i, one in enumerate(key) if type(one) is object), len(key))
    names = key[mark + 1 :]
    return key[:mark], dict(zip(names[::2], names[1::2], strict=True))


def fill_cache(live: Any, node: Node, path: str, value: Value) -> None:
    """Give a cached function of the script its entries again."""
    function = live.__wrapped__ if type(live) is CACHE else None
    ours = type(function) is types.FunctionType
    if not ours or kind_of(function.__code__.co_filename) != "user":  # type: ignore[union-attr]
        raise RefusedError(f"{shown(path)} is no cached function in the resumed run")
    for name, item in node["a"]:
        value(function, item, f"{path}.{name}")
    # What a resumed script has computed already is the same object for whoever holds it.
    before = {_key(args, named): result for args, named, result in _entries(live) or ()}
    entries: list[tuple[list[Any], dict[str, Any], Any]] = []
    for number, (args, named, result) in enumerate(node["v"]):
        given = value([], args, f"{path}.key[{number}]")
        keywords = value({}, named, f"{path}.named[{number}]")
        for one in (*given, *keywords.values()):
            admitted.check_key(one, path)
        old = before.get(_key(given, keywords), admitted.MISSING)
        entries.append((given, keywords, value(old, result, f"{path}.result[{number}]")))
    hits, misses = (int(one) for one in node["n"])
    if not 0 <= hits <= _MOST_HITS or not len(entries) <= misses <= _MOST_HITS:
        raise RefusedError(f"{shown(path)} was called in a way that makes no sense")
    _fill(live, function, entries, misses - len(entries))
    for _ in range(hits if entries else 0):
        live(*entries[-1][0], **entries[-1][1])
    if live.cache_info()[:2] != (hits, misses) or live.cache_info().currsize != len(entries):
        raise RefusedError(f"the cache of {shown(path)} cannot be filled in this Python")


def _key(args: Any, named: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(args), tuple(named.items())


def _fill(
    cached: Any,
    function: Any,
    entries: list[tuple[list[Any], dict[str, Any], Any]],
    forgotten: int,
) -> None:
    """Have the cache keep these results: the code of its function is ours for that time.

    A call that raises is counted and not kept, as those are whose results were ``forgotten``.
    """
    answers, code = [result for _, _, result in entries], function.__code__

    def stand_in(*args: Any, **named: Any) -> Any:
        return "answers".pop(0)  # type: ignore[attr-defined]  # the list, see below

    own = stand_in.__code__
    constants = tuple(answers if one == _ANSWERS else one for one in own.co_consts)
    function.__code__ = own.replace(co_consts=constants, co_freevars=code.co_freevars)
    try:
        cached.cache_clear()
        waiting, answers[:] = list(answers), []
        for _ in range(forgotten):
            with contextlib.suppress(IndexError):
                cached(_ANSWERS)
        answers[:] = waiting
        for args, named, _ in entries:
            cached(*args, **named)
    finally:
        function.__code__ = code


# ---------------------------------------------------------------------- threads


def take_local(value: threading.local, path: str, take: Take) -> Node:
    """What the thread that trains keeps in a ``threading.local``."""
    held = [[name, take(one, f"{path}.{name}")] for name, one in vars(value).items()]
    return {KIND: "local", "c": "local", "a": held}


def fill_local(live: Any, node: Node, path: str, value: Value) -> None:
    """Give it back."""
    if not isinstance(live, threading.local):
        raise RefusedError(f"{shown(path)} is no threading.local in the resumed run")
    own = vars(live)
    for name, item in node["a"]:
        old = own.get(name, admitted.MISSING)
        new = value(old, item, f"{path}.{name}")
        if new is not old:
            admitted.check_attribute(live, name, path)
            own[name] = new
    kept = {name for name, _ in node["a"]}
    for name in [name for name in own if name not in kept]:
        del own[name]


def thread(value: threading.Thread, path: str, take: Take) -> Node:
    """Refuse a thread of the script's own that is at work."""
    target = getattr(value, "_target", None)
    code = getattr(target, "__code__", None)
    own = of_user(type(value)) or (code is not None and kind_of(code.co_filename) == "user")
    if own and value.is_alive():
        text = "is a thread that works beside the loop; what it holds is not saved"
        raise RefusedError(f"{shown(path)} {text}: do its work in the loop, or in a DataLoader")
    return ref(value)


# ---------------------------------------------------------------------- iterators


def take_iterator(value: Any, path: str, take: Take) -> Node:
    """The place of an iterator; one that a resumed script must have by itself is a "place"."""
    if type(value) is itertools.count:
        match = _COUNT.fullmatch(repr(value))
        if match is not None:
            return {KIND: "count", "v": [int(match[1]), int(match[2] or 1)]}
    elif type(value) in _LISTED:
        left = list(itertools.islice(copy.copy(value), _LONGEST))
        secrets, name = Secrets(), last_name(path)
        reported = any(type(one) is str and secrets.named(one, name) is not one for one in left)
        if len(left) < _LONGEST and SCALARS.issuperset(map(type, left)) and not reported:
            return {KIND: "iterator", "v": left}
    try:
        return {KIND: "place", "v": iterators.take(value, path, take)}
    except iterators.NoPlaceError:
        refuse_iterator(value, path)


def fill_bar(live: Any, node: Node, path: str, value: Value) -> None:
    """Have a progress bar go on from its count."""
    if not type(live).__module__.startswith("tqdm") or type(node["n"]) not in (int, float):
        raise RefusedError(f"{shown(path)} is no progress bar in the resumed run")
    live.n = live.last_print_n = node["n"]


def fill_place(live: Any, node: Node, path: str, value: Value) -> None:
    """Put an iterator of the resumed script where it was."""
    try:
        iterators.put(live, node["v"], path, value)
    except iterators.NoPlaceError as why:
        text = f"is an iterator; its place cannot be put back{why}: keep a list and an index"
        raise RefusedError(f"{shown(path)} {text}") from None


def refuse_iterator(value: Any, path: str) -> NoReturn:
    """Say that the place of an iterator is lost, and what to use instead."""
    raise RefusedError(
        f"{shown(path)} is an iterator; its place cannot be saved: keep a list and an index"
    )


def restore_iterator(live: Any, node: Node, path: str) -> Any:
    """An iterator at the place that was saved: the live one where it comes to that."""
    if node[KIND] == "count":
        first, step = (int(one) for one in node["v"])
        match = _COUNT.fullmatch(repr(live)) if type(live) is itertools.count else None
        rounds = (first - int(match[1])) / step if match and step else -1
        fits = match is not None and int(match[2] or 1) == step and 0 <= rounds <= _MOST_ROUNDS
        if not fits or rounds != int(rounds):
            return itertools.count(first, step)
        for _ in range(int(rounds)):
            next(live)
        return live
    left = [one for one in node["v"] if type(one) in SCALARS]
    if type(live) in _LISTED:
        there = list(itertools.islice(copy.copy(live), _LONGEST))
        passed = len(there) - len(left)
        if passed >= 0 and there[passed:] == left:
            for _ in range(passed):
                next(live)
            if not left:
                next(live, None)
            return live
    return iter(left)
