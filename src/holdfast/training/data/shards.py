"""What a stream is made of: folders of tensors, datasets, iterables, functions that open one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from ...errors import UsageError
from .tensor_files import MappedTensors


class Indexed(Protocol):
    """A dataset: samples by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


Shard = str | os.PathLike[str] | Indexed | Iterable[Any] | Callable[[], Iterable[Any]]
"""A shard with ``__getitems__`` is asked for whole ranges. One of compressed blocks may say in
``boundaries`` at which samples they begin, in rising order: ranges are cut there."""


def opened(shard: Any, keys: Sequence[str] | None, form: Any) -> Any:
    """A shard as it is read; what cannot be read again in every epoch is refused."""
    if isinstance(shard, str | os.PathLike):
        return MappedTensors(shard, keys, form=form)
    if isinstance(shard, Iterator):
        raise UsageError(
            f"a {type(shard).__name__} as a shard can be read only once; "
            "give the function that makes it"
        )
    if not (is_sized(shard) or callable(shard) or isinstance(shard, Iterable)):
        raise UsageError(f"a {type(shard).__name__} as a shard cannot be read; give an iterable")
    return shard


def is_sized(shard: Any) -> bool:
    """Whether its samples have numbers."""
    return hasattr(shard, "__len__") and hasattr(shard, "__getitem__")


def samples_of(shard: Any) -> Iterator[Any]:
    """All of them, one by one."""
    if is_sized(shard):
        return (shard[index] for index in range(len(shard)))
    found: Any = shard() if callable(shard) else shard
    return iter(found)
