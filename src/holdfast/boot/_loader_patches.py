"""Patches for samples that cannot be read."""

from __future__ import annotations

import functools
from typing import Any

from ._patch import Function, GetEngine, Patch


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
        return made if engine is None else engine.fetcher(made) or made

    return create_fetcher


PATCHES = (
    Patch(
        target="torch.utils.data.DataLoader._get_iterator",
        why="whether a loader is trained on is known when a loop over it begins, before its "
        "workers are forked",
        make=_get_iterator,
    ),
    Patch(
        target="torch.utils.data.dataloader._DatasetKind.create_fetcher",
        why="samples are read by what this makes, in the process that reads them; one that cannot "
        "be read is replaced there",
        make=_create_fetcher,
    ),
)
