"""Iterable datasets: where the iterator of one stands in this process, and when workers agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.utils.data import IterableDataset

from . import iterators
from .refusal import RefusedError
from .values.nodes import Node, Take

_TRIES = 100
"""Batches that a stream hands out until it is at the right one of several ``yield``."""


def worker_is_out(iterator: Any) -> str:
    """Why it is chance which worker hands out the next batch; empty where it is not."""
    several = iterator._num_workers > 1 and isinstance(iterator._dataset, IterableDataset)
    if several and not all(iterator._workers_status):
        name = type(iterator._dataset).__name__
        return f"a worker has come to the end of {name}, when the others hear of it is chance"
    return ""


def take_stream(iterator: Any, path: str, take: Take, *, over: bool = False) -> dict[str, Any]:
    """Where the iterator of an iterable dataset in this process stands."""
    ended = over or bool(_fetcher(iterator).ended)
    place = None if ended else _stream(iterator, lambda one: iterators.take(one, path, take))
    return {"place": place, "ended": ended}


def begin_stream(iterator: Any, saved: Mapping[str, Any], count: int) -> None:
    """Have a stream that has begun hand out batches until it is at the ``yield`` of then."""
    place = saved["place"]
    if place is None:
        return
    for _ in range(min(count, _TRIES)):
        iterator._next_data()
        here = _stream(iterator, lambda one: iterators.take(one, "", lambda held, at: None))
        if iterators.shape(here) == iterators.shape(place):
            return


def put_stream(
    live: Any, saved: Mapping[str, Any], path: str, value: Callable[[Any, Node, str], Any]
) -> None:
    """Have the iterator of an iterable dataset in this process stand where it stood."""
    place = saved["place"]
    if place is not None:
        _stream(live, lambda one: iterators.put(one, place, path, value))
    _fetcher(live).ended = bool(saved["ended"])


def _fetcher(iterator: Any) -> Any:
    return iterator._dataset_fetcher


def _stream(iterator: Any, does: Callable[[Any], Any]) -> Any:
    """Do something with the iterator of an iterable dataset in this process."""
    try:
        return does(_fetcher(iterator).dataset_iter)
    except iterators.NoPlaceError as why:
        name = type(iterator._dataset).__name__
        text = f"{name} is an iterable dataset; its iterator has no place to go on from{why}"
        raise RefusedError(text) from None
