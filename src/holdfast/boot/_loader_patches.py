"""Patches of loaders: passes over them, their batches, and samples that cannot be read."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any

import torch
from torch.utils.data.dataloader import _DatasetKind

from ..actions import replace_sample
from ._patch import Function, GetEngine, Patch

# What torch's __next__ of a loader is made of where the lines below do the same.
_NEXT = {
    *("torch", "autograd", "profiler", "record_function", "_profile_name", "_sampler_iter"),
    *("_reset", "_next_data", "_num_yielded", "_dataset_kind", "_DatasetKind", "Iterable"),
    *("_IterableDataset_len_called", "_dataset", "_num_workers", "warnings", "warn"),
}
_profiling = torch.autograd._profiler_enabled


def _next(engine_of: GetEngine, original: Function) -> Function:
    known = set(getattr(original, "__code__", _next.__code__).co_names) == _NEXT

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        engine = engine_of()
        if engine is None:
            return original(self)
        again = engine.fetch_begins(self)
        if again is not None:
            return again[0]
        # As torch does, but without the span it opens for a profiler while there is none: that
        # takes as long as all that the guard does with the batch, which it pays for like the ones
        # around a step (``_optimizer_patches``). A stream is counted too, and warned about if it
        # is longer than it says; and whoever traces lines knows torch's.
        short = (
            known
            and engine.may_rewrite
            and self._dataset_kind == _DatasetKind.Map
            and self._sampler_iter is not None
            and not (_profiling() or sys.gettrace())
        )
        try:
            batch = self._next_data() if short else original(self)
        except StopIteration:
            engine.fetch_fails(self)
            raise
        except Exception as error:
            if not short:
                raise
            return original(_Failed(self, error))
        if short:
            self._num_yielded += 1
        engine.fetched(self, batch)
        return batch

    return __next__


class _Failed:
    """Stands for an iterator that got no batch: the error comes out of the line of torch's own."""

    def __init__(self, iterator: Any, error: Exception) -> None:
        self._iterator, self._error = iterator, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)

    def _next_data(self) -> Any:
        raise self._error


def _next_index(engine_of: GetEngine, original: Function) -> Function:
    known = getattr(original, "__code__", _next.__code__).co_names == ("next", "_sampler_iter")

    @functools.wraps(original)
    def _next_index(self: Any) -> Any:
        engine = engine_of()
        if engine is None:
            return original(self)
        # What torch does, which is a call that pays for ours.
        short = known and engine.may_rewrite
        indices = next(self._sampler_iter) if short else original(self)
        while (kept := engine.drew(self, indices)) and kept[0] is None:
            # Nothing is left. The sampler's own StopIteration ends the epoch here too.
            indices = original(self)
        return indices if kept is None else kept[0]

    return _next_index


def _made(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        engine = engine_of()
        if engine is not None:
            engine.loader_made(self)

    return __init__


def _get_iterator(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def _get_iterator(self: Any) -> Any:
        engine = engine_of()
        if engine is None:
            return original(self)
        engine.loader_begins(self)
        iterator = None
        try:
            iterator = original(self)
            return iterator
        finally:
            engine.loader_began(iterator)

    return _get_iterator


def _create_fetcher(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def create_fetcher(*args: Any, **kwargs: Any) -> Any:
        made, engine = original(*args, **kwargs), engine_of()
        if engine is not None:
            return engine.fetcher(made) or made
        with contextlib.suppress(Exception):  # a worker has no engine where nothing was patched
            return replace_sample.fetcher(made)
        return made

    return create_fetcher


def _iter(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def __iter__(self: Any) -> Any:
        engine = engine_of()
        return original(self) if engine is None else engine.pass_begins(self, original)

    return __iter__


def _save(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        engine = engine_of()
        if engine is not None and engine.holds_off_saving:
            return None
        return original(*args, **kwargs)

    return save


def _load(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        engine = engine_of()
        if engine is not None:
            engine.loads(f)
        return original(f, *args, **kwargs)

    return load


INDICES = Patch(
    target="torch.utils.data.dataloader._BaseDataLoaderIter._next_index",
    why="the dataset indices, at the only place where they pass through the main process; on "
    "request those of quarantined samples are skipped",
    make=_next_index,
)
"""Alone for a loop that is watched by ``holdfast.watch``."""

FETCHER = Patch(
    target="torch.utils.data.dataloader._DatasetKind.create_fetcher",
    why="samples are read by what this makes, in the process that reads them; one that cannot "
    "be read is replaced there",
    make=_create_fetcher,
)
"""Alone in workers of a watched loop that are no forks, and in one whose loop begins."""

PATCHES = (
    Patch(
        target="torch.utils.data.dataloader._BaseDataLoaderIter.__next__",
        why="time spent waiting for data and which batch it was; only the base class defines it, "
        "so the iterator keeps its type",
        make=_next,
    ),
    INDICES,
    Patch(
        target="torch.utils.data.DataLoader.__init__",
        why="the line that made a loader is the one to change where ranks read the same data",
        make=_made,
    ),
    Patch(
        target="torch.utils.data.DataLoader.__iter__",
        why="passes are numbered, so that a resumed script finds the one it was in; those that "
        "were over then hand out nothing",
        make=_iter,
    ),
    Patch(
        target="torch.serialization.save",
        aliases=("torch.save",),
        why="a resumed script that is on its way to its place must not write its first epochs "
        "over its last ones",
        make=_save,
    ),
    Patch(
        target="torch.serialization.load",
        aliases=("torch.load",),
        why="a script that loads what its earlier run has saved resumes by itself and is left "
        "alone",
        make=_load,
    ),
    Patch(
        target="torch.utils.data.DataLoader._get_iterator",
        why="whether a loader is trained on is known when a loop over it begins, before its "
        "workers are started",
        make=_get_iterator,
    ),
    FETCHER,
)
