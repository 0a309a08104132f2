"""Workers of loaders are led to where they were: they load again what they have loaded."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..checkpoint import rng
from ..checkpoint.loader_pass import Beginning, generators, put_generators_back
from .refusal import RefusedError, say

_PATIENCE = 5.0
"""Seconds after which the work of leading workers is told."""


def lead_through(loader: Any, saved: Mapping[str, Any], work: LoadedAgain) -> None:
    """Have workers that last do what they did in a pass that was over; draw nothing beside."""
    rng_state, states = rng.state(), generators(loader)
    beginning = Beginning(loader)
    iterator: Any = iter(loader)
    beginning.of(iterator)
    work.through(iterator, int(saved["batches"]), over=True, what=type(loader.dataset).__name__)
    if not beginning.draws(saved):
        raise RefusedError("the loader draws other samples than it did")
    put_generators_back(loader, states)
    rng.put_back(rng_state)


class LoadedAgain:
    """Batches that workers load again, which nobody will train on."""

    def __init__(self) -> None:
        self._began = self._said = 0.0
        self._batches = 0

    def through(self, iterator: Any, count: int, *, over: bool, what: str) -> None:
        """Ask an iterator for so many batches, and for its end where it came to that."""
        if iterator._num_yielded > count:
            raise RefusedError(f"{what} has handed out more batches than it had")
        if not self._began:
            self._began = self._said = time.monotonic()
            say("resuming: workers of a loader load again what they had loaded, to draw the same")
        while iterator._num_yielded < count:
            try:
                # Past __next__, which tells the guard of a batch that nobody will train on.
                iterator._next_data()
            except StopIteration:
                raise RefusedError(f"{what} ends after {iterator._num_yielded} batches") from None
            iterator._num_yielded += 1
            self._batches += 1
            now = time.monotonic()
            if now - self._said > _PATIENCE:
                self._said = now
                say(
                    f"resuming: {self._batches:,} batches loaded again in {now - self._began:.0f} s"
                )
        if over:
            try:
                iterator._next_data()
            except StopIteration:
                return
            raise RefusedError(f"{what} hands out more than {count} batches, and did not")
