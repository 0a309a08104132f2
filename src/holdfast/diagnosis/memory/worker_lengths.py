"""Which container of a dataset grows in a loader's worker, measured from within it.

Lengths of everything that can be reached from the dataset, of the caches of its methods and of the
local variables of a stream, at several times. What is longer each time is what grows; where nothing
is, the worker copies what it only reads: the largest container of Python objects is named.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from types import FrameType, GeneratorType
from typing import Any, TypeAlias

from ...records.memory import WorkerContainer
from ...source.assignments import first_assigned
from ...source.frames import frames_from
from ...source.growth import habits
from ...source.ownership import file_of, owner_of
from .code_line import code_line
from .references import CACHED, Held, reachable

# Looks that must each find more than the one before; looks without an answer that are one.
_LOOKS = 4
_MOST = 8
# A list of so many objects is what copying on write is about.
_MANY = 5_000

Answer = dict[str, Any]
_Stream: TypeAlias = "GeneratorType[Any, Any, Any]"


class Lengths:
    """What a worker has measured of itself so far."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        """What grows: ``path``, ``name``, ``how``, ``tested``, ``file`` and ``line``; or empty."""
        self._looks: deque[dict[tuple[str, str], int]] = deque(maxlen=_LOOKS)
        self._count = 0

    def look(self, frame: FrameType) -> None:
        """Measure the dataset of a worker.

        Args:
            frame: where its main thread is.
        """
        dataset, stream = _at_work(frame)
        self._looks.append(_lengths(dataset, stream))
        self._count += 1
        for place in self._looks[-1] if self._count >= _LOOKS else ():
            if all(a.get(place, 0) < b.get(place, 0) for a, b in pairwise(self._looks)):
                self.answer = _facts(*place, dataset, stream)
                return
        if self._count >= _MOST:
            self.answer = {}


def container(dataset: Any, answer: Answer) -> WorkerContainer:
    """What grows or is copied, of a dataset whose worker has given its answer."""
    if answer:
        return WorkerContainer(
            path=answer["path"],
            name=answer["name"],
            how=answer["how"],
            tested=answer.get("tested", False),
            **vars(code_line(answer["file"], answer["line"], "source")),
        )
    many = [held for held in _containers(dataset) if len(held.value) >= _MANY]
    if not many:
        return WorkerContainer(copied=True, **vars(code_line("", 0, "guess")))
    held, file = max(many, key=lambda held: len(held.value)), _file_of(dataset)
    return WorkerContainer(
        path=held.path,
        name=held.name,
        how=held.how,
        copied=True,
        **vars(code_line(file, first_assigned(file, held.name), "source")),
    )


def _at_work(frame: FrameType) -> tuple[Any, _Stream | None]:
    """The dataset of a worker, and the stream that it reads, if it is one."""
    dataset = stream = None
    for at in frames_from(frame):
        held = at.f_locals
        if at.f_code.co_name == "_worker_loop" and "fetcher" in held:
            dataset = held.get("dataset")
            stream = getattr(held["fetcher"], "dataset_iter", None)
    return dataset, stream if isinstance(stream, GeneratorType) else None


def _lengths(dataset: Any, stream: _Stream | None) -> dict[tuple[str, str], int]:
    """The length of each container, by how it is held and its path."""
    found: dict[tuple[str, str], int] = {}
    for held in _containers(dataset):
        found.setdefault(("attribute", held.path), len(held.value))
    for cache in _caches(dataset):
        if cache.cache_info().maxsize is None:
            name = cache.__wrapped__.__code__.co_qualname
            found["cache", name] = cache.cache_info().currsize
    frame = stream.gi_frame if stream is not None else None
    for name, value in frame.f_locals.items() if frame is not None else ():
        if isinstance(value, list | dict | deque | set):
            found["local", name] = len(value)
    return found


def _facts(how: str, path: str, dataset: Any, stream: _Stream | None) -> Answer:
    """The container that grows, and the first line that puts something into it."""
    *owners, name = path.split(".")
    found = {"path": path, "name": name, "how": how}
    for cache in _caches(dataset) if how == "cache" else ():
        code = cache.__wrapped__.__code__
        if code.co_qualname == path:
            return found | {"file": code.co_filename, "line": code.co_firstlineno}
    if stream is not None and how == "local":
        file, scope = stream.gi_code.co_filename, stream.gi_code.co_name
    else:
        owner = dataset
        for part in owners[1:]:
            owner = getattr(owner, part, None)
        file, scope = _file_of(owner) or _file_of(dataset), ""
    known = habits(file, name, scope)
    line = known.grows[0] if known.grows else 0
    return found | {"tested": known.tested, "file": file, "line": line}


def _containers(dataset: Any) -> Iterator[Held]:
    return (h for h in reachable(dataset) if isinstance(h.value, list | dict | deque | set))


def _caches(dataset: Any) -> list[Any]:
    """Cached methods of the dataset's own classes."""
    return [v for kind in _own(dataset) for v in vars(kind).values() if type(v) is CACHED]


def _file_of(dataset: Any) -> str:
    """The file of the user's class that a dataset is of; empty for a library's."""
    return next((file_of(kind) or "" for kind in _own(dataset)), "")


def _own(dataset: Any) -> list[type]:
    return [kind for kind in type(dataset).__mro__ if owner_of(kind) == "user"]
