"""Where a run is in its data: the epoch, and the passes over loaders in it.

A resumed run goes through its script from the top. Epochs that are over are not begun, passes
that are over hand out nothing, and the pass that was under way is taken up at its next batch.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from . import rng
from .loader_pass import (
    LASTING,
    LoaderPass,
    Say,
    generators,
    put_generators_back,
    wake,
)


class Position:
    """Where a run is: the epoch, and the passes over loaders in it."""

    def __init__(self) -> None:
        self.epoch: int | None = None
        self.why = ""
        """Why what was taken up again cannot be what it was; empty as far as is known."""
        self.pending = False
        """A pass of the saved position waits to be taken up again."""
        self.left_out = 0
        """Passes and stages that were over and are not made again, since the run was resumed."""
        self._stage = 0  # how often a loop over epochs was begun
        self._loops = 0
        self._open: dict[int, LoaderPass] = {}
        self._loaders: dict[int, weakref.ref[Any]] = {}
        self._then: Mapping[str, Any] | None = None
        self._rng_state: Mapping[str, Any] | None = None
        self._returned: set[int] = set()

    @property
    def batches(self) -> int:
        """How many batches the innermost pass has handed out."""
        return self._open[max(self._open)].batches if self._open else 0

    @property
    def under_way(self) -> bool:
        """Whether the loop is amid a pass, and will ask for another batch."""
        return bool(self._open)

    def state(self) -> dict[str, Any]:
        """The epoch, how many passes were begun in it, and those that are not over."""
        loaders = ((number, reference()) for number, reference in self._loaders.items())
        return {
            "stage": self._stage,
            "epoch": self.epoch,
            "loops": self._loops,
            "open": {number: loader_pass.state() for number, loader_pass in self._open.items()},
            # The next epoch goes on with what this one has left of them.
            "used": {n: generators(loader) for n, loader in loaders if loader is not None},
        }

    def resume(self, then: Mapping[str, Any], rolled: Mapping[str, Any]) -> None:
        """Go on from a saved position, with the random state ``rolled`` of that moment."""
        self._then, self._rng_state = then, rolled
        self.pending = bool(then["open"])
        if not then["open"] and not then["loops"]:
            self.why = "the data did not come through watch(loader): its place is not known"

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of ``count``."""
        self._stage += 1
        then = self._then
        first = 0
        if then is not None and self._stage < then["stage"]:
            self.left_out += 1
            return
        if then is not None and self._stage == then["stage"]:
            # Saved after its loops, an epoch is over.
            first = then["epoch"] + (1 if then["loops"] and not then["open"] else 0)
        for epoch in range(first, count):
            self.epoch, self._loops = epoch, 0
            if self._rng_state is not None and not self.pending:
                rng.put_back(self._rng_state)
                self._rng_state = None
            yield epoch

    def begins(self, loader: Iterable[Any], *, fast: bool, say: Say) -> LoaderPass | None:
        """A loop over a loader begins; None when the resumed run had it behind it."""
        number = self._loops
        self._loops += 1
        self._remember(number, loader)
        then = self._then
        if then is not None and (then["stage"], then["epoch"]) == (self._stage, self.epoch):
            if number in then["open"]:
                loader_pass = self._take_up(loader, then["open"][number], fast=fast, say=say)
                self._open[number] = loader_pass
                return loader_pass
            if number < then["loops"]:
                self.left_out += 1
                put_generators_back(loader, then["used"].get(number, ()))
                return None
        if self._rng_state is not None:
            rng.put_back(self._rng_state)
            self._rng_state = None
        if then is not None and number in then["used"] and id(loader) not in self._returned:
            self._returned.add(id(loader))
            if wake(loader):
                self.why = self.why or LASTING
            put_generators_back(loader, then["used"][number])
        loader_pass = self._open[number] = LoaderPass(loader)
        return loader_pass

    def _take_up(
        self, loader: Iterable[Any], saved: Mapping[str, Any], *, fast: bool, say: Say
    ) -> LoaderPass:
        # Of several passes side by side the first has already gone on with the saved random state.
        rolled = self._rng_state if self._rng_state is not None else rng.state()
        loader_pass = LoaderPass.again(loader, saved, fast=fast, say=say)
        rng.put_back(rolled)
        self._rng_state, self.pending = None, False
        self._returned.add(id(loader))
        self.why = self.why or loader_pass.why
        return loader_pass

    def _remember(self, number: int, loader: Iterable[Any]) -> None:
        if self.epoch is None:
            # Without epochs the numbers only grow: of each loader the last pass will do.
            self._loaders = {n: one for n, one in self._loaders.items() if one() is not loader}
        with contextlib.suppress(TypeError):  # a list has no generators, either
            self._loaders[number] = weakref.ref(loader)

    def ends(self, loader_pass: LoaderPass) -> None:
        """A loop is over, or was left."""
        self._open = {number: one for number, one in self._open.items() if one is not loader_pass}
