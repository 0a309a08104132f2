"""Which container of a dataset grows when samples are fetched, and on which line.

A few samples are fetched in this process, all random states put back, and every container that can
be reached from the dataset is watched; what has grown is cut back to its length. Caches of its
methods and the local variables of a stream are asked too. Where nothing grows, the workers copy
what they only read: the largest container of Python objects is named.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import random
from collections import deque
from collections.abc import Iterator
from time import perf_counter
from types import FrameType, GeneratorType
from typing import Any

import numpy as np
import torch

from ..datasets import caches_of, file_of, lengths
from ..source.growers import habits
from ..source.place import place_told
from ..watchpoint import Watchpoint
from .change_probe import Changed
from .holders import Held, reachable

_SAMPLES = 6
_WATCHED = 64
# A list of so many objects is what copying on write is about.
_MANY = 5_000
# Samples and seconds of a stream.
_STREAMED = 24
_SECONDS = 1.0


def told_by_worker(dataset: Any, answer: dict[str, Any]) -> dict[str, Any]:
    """The facts about a dataset whose worker has looked at itself; see ``_worker_lengths``."""
    found = [h for h in reachable(dataset) if isinstance(h.value, list | dict | deque | set)]
    if not answer:
        return _copied(dataset, found)
    place = place_told(answer["file"], answer["line"])
    return answer | {"seen": "source"} | place


def examine(dataset: Any, frame: FrameType, *, fetch: bool) -> dict[str, Any]:
    """The facts about a dataset whose workers grow.

    Args:
        dataset: of the loader.
        frame: the place in the loop.
        fetch: whether samples may be fetched here; without that the source is read, and what is
            copied is named.
    """
    found = [h for h in reachable(dataset) if isinstance(h.value, list | dict | deque | set)]
    if not fetch:
        return _by_source(dataset, found) or _copied(dataset, found) | {"looked": False}
    watched = sorted(found, key=lambda h: h.depth)[:_WATCHED]
    before = [len(h.value) for h in watched]
    caches = caches_of(dataset)
    filled = [cache.cache_info() for cache in caches]
    watch = Watchpoint([Changed(h) for h in watched], seconds=0.5)
    with _same_dice():
        if isinstance(dataset, torch.utils.data.IterableDataset):
            return _streamed(dataset) or _copied(dataset, found)
        started = watch.start(frame)
        try:
            _fetch(dataset)
        finally:
            watch.stop()
    for cache, info in zip(caches, filled, strict=True):
        if cache.cache_info().currsize > info.currsize and info.maxsize is None:
            code = cache.__wrapped__.__code__
            facts = {"path": code.co_qualname, "name": code.co_name, "how": "cache"}
            return facts | {"seen": "source"} | place_told(code.co_filename, code.co_firstlineno)
    for i, (held, length) in enumerate(zip(watched, before, strict=True)):
        if len(held.value) <= length:
            continue
        changes = watch.changes.get(i, []) if started else []
        _cut(held.value, length)
        file, name = file_of(dataset), held.name
        known = habits(file, name)
        facts = {
            "path": held.path,
            "name": name,
            "how": held.how,
            "tested": known.tested or known.capped,
        }
        if changes:
            return facts | {"seen": "trace"} | place_told(changes[0].file, changes[0].line)
        line = known.grows[0] if known.grows else 0
        return facts | {"seen": "source"} | place_told(file, line)
    return _by_source(dataset, found) or _copied(dataset, found)


def _by_source(dataset: Any, found: list[Held]) -> dict[str, Any]:
    """A container that a line of its owner's class puts something into, and none takes it out."""
    for held in sorted(found, key=lambda h: h.depth):
        owner = dataset
        for name in held.path.split(".")[1:-1]:
            owner = getattr(owner, name, None)
        file = file_of(owner)
        known = habits(file, held.name)
        # Not those of a local variable of the same name.
        lines = [n for n in known.grows if f".{held.name}" in linecache.getline(file, n)]
        if held.how == "attribute" and lines and not (known.shrinks or known.capped):
            facts = {"path": held.path, "name": held.name, "how": held.how, "tested": known.tested}
            return facts | {"seen": "source"} | place_told(file, lines[0])
    return {}


def _fetch(dataset: Any) -> None:
    with contextlib.suppress(Exception):  # a sample that cannot be had here tells nothing
        for i in range(min(_SAMPLES, len(dataset))):
            dataset[i]


def _streamed(dataset: Any) -> dict[str, Any]:
    """A container among the local variables of a stream that grows with every sample."""
    with contextlib.suppress(Exception):
        stream = iter(dataset)
        if not isinstance(stream, GeneratorType):
            return {}
        began, sizes = perf_counter(), list[dict[str, int]]()
        for _ in range(_STREAMED):
            next(stream)
            sizes.append(lengths(stream))
            if perf_counter() - began > _SECONDS:
                break
        stream.close()
        code = stream.gi_code
        half = len(sizes) // 2
        for name, length in sizes[-1].items() if half > 1 else ():
            grown = [later.get(name, 0) - length for later in (sizes[0], sizes[half])]
            # With every sample, and not only until it is full.
            if grown[0] < grown[1] <= -(len(sizes) - 1 - half) // 2:
                known = habits(code.co_filename, name, code.co_name)
                facts = {"path": name, "name": name, "how": "local"}
                line = known.grows[0] if known.grows else 0
                return facts | {"seen": "source"} | place_told(code.co_filename, line)
    return {}


def _cut(value: Any, length: int) -> None:
    """Take out what the exam itself has put in."""
    with contextlib.suppress(Exception):
        if isinstance(value, list):
            del value[length:]
        elif isinstance(value, dict | deque):
            while len(value) > length:
                value.popitem() if isinstance(value, dict) else value.pop()


def _copied(dataset: Any, found: list[Held]) -> dict[str, Any]:
    many = [h for h in found if len(h.value) >= _MANY]
    if not many:
        return {"path": "", "seen": "guess", "copied": True, **place_told("", 0)}
    held = max(many, key=lambda h: len(h.value))
    file = file_of(dataset)
    facts = {"path": held.path, "name": held.name, "how": held.how, "copied": True}
    return facts | {"seen": "source"} | place_told(file, _assigned(file, held.name))


def _assigned(file: str, name: str) -> int:
    """The line that gives an attribute or a variable its value."""
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse("".join(linecache.getlines(file)))):
            if not isinstance(node, ast.Assign):
                continue
            for target in node.targets:
                if getattr(target, "attr", getattr(target, "id", "")) == name:
                    return node.lineno
    return 0


@contextlib.contextmanager
def _same_dice() -> Iterator[None]:
    states = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.random.set_rng_state(states[2])
