"""Which container of a dataset grows in a worker, seen from within it.

Lengths of everything that can be reached from the dataset, of the caches of its methods and of the
local variables of a stream, at several times. What is longer each time is what grows; where nothing
is, the worker copies what it only reads.
"""

from __future__ import annotations

import linecache
from collections import deque
from itertools import pairwise
from types import FrameType, GeneratorType
from typing import Any

from ..datasets import caches_of, file_of, lengths
from ..source.growers import habits
from ..source.place import frames_from
from .holders import reachable

# Looks that must each find more than the one before; looks without an answer that are one.
_LOOKS = 4
_MOST = 8

Answer = dict[str, Any]


class Lengths:
    """What was seen so far."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        """What grows: ``path``, ``name``, ``how``, ``tested``, ``file`` and ``line``."""
        self._looks: list[dict[str, int]] = []

    def look(self, frame: FrameType) -> None:
        """Look at the dataset of a worker.

        Args:
            frame: where its main thread is.
        """
        dataset, stream = _at_work(frame)
        known: dict[str, int] = {}
        for held in reachable(dataset) if dataset is not None else ():
            if isinstance(held.value, list | dict | deque | set):
                known.setdefault(held.path, len(held.value))
        for cache in caches_of(dataset):
            if cache.cache_info().maxsize is None:
                known[f"cache {cache.__wrapped__.__code__.co_qualname}"] = (
                    cache.cache_info().currsize
                )
        if stream is not None:
            known |= {f"local {name}": length for name, length in lengths(stream).items()}
        self._looks.append(known)
        last = self._looks[-_LOOKS:]
        for name in known if len(last) == _LOOKS else ():
            if all(a.get(name, 0) < b.get(name, 0) for a, b in pairwise(last)):
                self.answer = _facts(name, dataset, stream)
                return
        if len(self._looks) >= _MOST:
            self.answer = {}


def _at_work(frame: FrameType) -> tuple[Any, GeneratorType[Any, Any, Any] | None]:
    """The dataset of a worker, and the stream that it reads, if it is one."""
    dataset = stream = None
    for at in frames_from(frame):
        held = at.f_locals
        if at.f_code.co_name == "_worker_loop" and "fetcher" in held:
            dataset = held.get("dataset")
            stream = getattr(held["fetcher"], "dataset_iter", None)
    return dataset, stream if isinstance(stream, GeneratorType) else None


def _facts(found: str, dataset: Any, stream: GeneratorType[Any, Any, Any] | None) -> Answer:
    how, _, name = found.partition(" ")
    if how == "cache":
        for cache in caches_of(dataset):
            code = cache.__wrapped__.__code__
            if code.co_qualname == name:
                place = {"file": code.co_filename, "line": code.co_firstlineno}
                return {"path": name, "name": code.co_name, "how": "cache", **place}
    if how == "local" and stream is not None:
        code = stream.gi_code
        lines = habits(code.co_filename, name, code.co_name).grows
        place = {"file": code.co_filename, "line": lines[0] if lines else 0}
        return {"path": name, "name": name, "how": "local", **place}
    name = found.rpartition(".")[2]
    owner = dataset
    for part in found.split(".")[1:-1]:
        owner = getattr(owner, part, None)
    file = file_of(owner) or file_of(dataset)
    known = habits(file, name)
    # Not those of a local variable of the same name.
    lines = [n for n in known.grows if f".{name}" in linecache.getline(file, n)] or known.grows
    place = {"file": file, "line": lines[0] if lines else 0}
    return {"path": found, "name": name, "how": "attribute", "tested": known.tested} | place
