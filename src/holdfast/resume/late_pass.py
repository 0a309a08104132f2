"""A pass over a loader that begins only when the loop of a resumed script asks for its first batch.

The loop has got its iterator before anything is put back. It stays the same object; what it is,
with its workers and what they see, comes when all else is what it was.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from .refusal import RefusedError

_ITERATORS = _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter


def waiting(loader: Any) -> _BaseDataLoaderIter:
    """An iterator of the class that the loader would make, without workers and without a place."""
    kind = type(loader)
    plain = kind.__iter__ is DataLoader.__iter__ and kind._get_iterator is DataLoader._get_iterator
    if not plain:
        raise RefusedError(f"{kind.__name__} makes its iterator by itself")
    several = loader.num_workers > 0
    made = object.__new__(_ITERATORS[0] if several else _ITERATORS[1])
    made.__dict__["_shutdown"] = True  # nothing to end yet
    if several and loader.persistent_workers:
        loader._iterator = None
    return made


def begin(loader: Any, iterator: Any, new: Any) -> None:
    """Let an iterator that waits be what a new one is, which is nothing afterwards."""
    if type(new) is not type(iterator):
        raise RefusedError(f"the loader has made a {type(new).__name__} this time")
    if getattr(new, "_worker_pids_set", False):
        # torch tells by the id of an iterator whose workers have died.
        signal_handling._remove_worker_pids(id(new))
        pids = tuple(worker.pid for worker in new._workers)
        signal_handling._set_worker_pids(id(iterator), pids)
    held = dict(vars(new))
    vars(new).clear()
    vars(new)["_shutdown"] = True
    vars(iterator).clear()
    vars(iterator).update(held)
    if getattr(loader, "_iterator", None) is new:
        loader._iterator = iterator
