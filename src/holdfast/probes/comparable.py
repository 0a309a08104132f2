"""Can the losses of this run be compared over time? Asked before anything more than a bad step.

The level of a loss says something about the weights only where the data stays the same. A loop
that makes its own data (reinforcement learning, points that are sampled anew, generated batches),
two models that train against each other and a dataset that is replaced while it is trained on all
move their loss without any damage. There holdfast observes and says what it sees; rolling back,
lowering the learning rate, clipping and skipping finite steps need a loss that can be compared.

    a loader over a dataset that stays ─ one loss for all optimizers ─ both for a whole baseline

What is measured: which dataset the batches of each step came from, its length from one pass to
the next, and whether optimizers that take turns have a loss of their own. All of it is known on
the host from what the loaders and the optimizers do; no tensor is read.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data.dataloader import _DatasetKind

from .baseline import WINDOW

# Steps that one batch may serve: a second optimizer, inner steps, the last of a loop that fetches
# ahead. A guess; a loop that draws its own data and validates with a loader is far above it.
_STEPS = 16
# Steps at the beginning of a pass, of a sixteenth of it at most, and steps until the numbers of one
# are known on the host; guesses.
_FIRST, _SHARE, _LATE = 4, 16, 3
# Datasets that are remembered, and changes that are recorded in a run.
_KNOWN = 16
_RECORDS = 32

OWN_DATA = "this loop makes its own data: its batches come from no DataLoader"
STREAM = "its batches are a stream without a length: whether data comes back is not known"
PAIR = "optimizers that take turns have a loss each, and each moves the loss of the other"
REPLACED = "the dataset it trains on was replaced"


@dataclass(slots=True)
class _Source:
    """What a loader reads: a dataset, or what was handed to ``holdfast.watch``."""

    alive: Callable[[], object]
    key: int
    length: int
    why: str
    """Why its losses cannot be compared; empty where they can."""
    trained: bool = False
    """Whether a step was made with it."""
    kind: str = ""
    """The class of what is read."""

    def state(self) -> dict[str, Any]:
        names = ("length", "why", "trained", "kind")
        return {name: getattr(self, name) for name in names}


# What is known beside the datasets.
_KEPT = (
    *("why", "_any", "_hungry", "_own", "_changed", "_seen", "_until", "_records"),
    *("_in_pass", "_first", "_meant_until"),
)


class Comparability:
    """Whether the losses of the last steps can be compared, and why not."""

    def __init__(self) -> None:
        self.why = ""
        """Why losses cannot be compared at present; empty where they can."""
        self.agreed = False
        """Whether several ranks have agreed that theirs can; loaders may differ between them."""
        self._sources: deque[_Source] = deque(maxlen=_KNOWN)
        self._any = False
        self._source: _Source | None = None
        self._feeding: Callable[[], object] = lambda: None
        self._earlier: list[Mapping[str, Any]] = []
        self._given: object = None
        self._hungry = _STEPS
        self._own: dict[int, int] = {}
        self._changed = ""
        self._seen = ""
        self._until = -1
        self._records = 0
        self._in_pass = 0
        self._first = 0
        self._meant_until = -1
        self.may_skip = True
        """Whether a step may be skipped only because its numbers are far from the last ones.

        Not where a pass begins: a new stage of a curriculum begins there, and one broken batch
        among the first is rare. Asked in every step, and changed by few.
        """

    @property
    def holds(self) -> bool:
        """Whether losses can be compared at present."""
        return not self.why

    def outlier(self, step: int) -> None:
        """A finite step was far from the last ones."""
        if self._first and self._in_pass <= self._first + _LATE:
            self._meant_until = step + WINDOW

    # ------------------------------------------------------------------ what feeds the loop

    def passes_over(self, data: object) -> None:
        """Somebody who knows says what the next pass reads, where it is no DataLoader."""
        self._given = data

    def feeds(self, iterator: Any) -> None:
        """Another iterator than before hands out batches: a new pass, or another dataset."""
        if self._feeding() is iterator:
            return  # it did in the run that this one goes on with
        self._feeding = _alive(iterator)
        self._in_pass = 0
        self._first = max(0, min(_FIRST, _length(iterator) // _SHARE))
        self.may_skip = not self.why and not self._first
        self._reads(iterator)

    def _reads(self, iterator: Any) -> None:
        """Find out which dataset it is."""
        data = getattr(iterator, "_dataset", None)
        if data is None:
            data = iterator if self._given is None else self._given
        length = _length(data)
        for source in self._sources:
            if source.key == id(data) and source.alive() is not None:
                if source.length != length:
                    self._changed = f"the dataset grew from {source.length} to {length} samples"
                    if length < source.length:
                        self._changed = self._changed.replace("grew", "shrank")
                    source.length = length
                self._source = source
                return
        made = _Source(_alive(data), id(data), length, _why(iterator, data, length))
        made.kind = type(data).__name__
        self._known_before(made)
        self._source = made
        self._sources.append(made)

    def _known_before(self, source: _Source) -> None:
        """In a run that goes on with another one: a dataset that was trained on there."""
        like = {"length": source.length, "why": source.why, "kind": source.kind}
        for one in self._earlier:
            if like.items() <= one.items():
                source.trained = bool(one["trained"])
                self._earlier.remove(one)
                return

    # ------------------------------------------------------------------ going on in another run

    def state(self, iterator: Any) -> dict[str, Any]:
        """All that its next answers depend on, as plain data; ``iterator`` feeds the loop."""
        kept = {name: getattr(self, name) for name in _KEPT}
        # The one of this pass first, which is the first to be asked for. A list cannot say whether
        # it still lives: one of before may be another one now.
        living = [one for one in self._sources if one.alive() not in (None, True)]
        living = [one for one in living if one is not self._source]
        living = living if self._source is None else [self._source, *living]
        feeding = self._feeding() is iterator
        return {**kept, "sources": [one.state() for one in living], "feeding": feeding}

    def restore(self, state: Mapping[str, Any], iterator: Any) -> None:
        """Go on from what ``state`` gave; this ``iterator`` goes on with the pass."""
        for name in _KEPT:
            setattr(self, name, state[name])
        self.may_skip = not self.why and self._in_pass >= self._first
        self._sources.clear()
        self._earlier = list(state["sources"])
        self._feeding = _alive(iterator) if state["feeding"] else lambda: None
        if state["feeding"]:
            self._reads(iterator)

    # ------------------------------------------------------------------ the steps

    def stepped(self, step: int, opt: int, *, fed: bool, own: bool, several: bool) -> bool:
        """A step is over; True when the answer has changed and is to be recorded.

        Args:
            step: its number.
            opt: its optimizer.
            fed: whether a batch came from a loader since the step before.
            own: whether there was a backward pass since the step before, of any optimizer.
            several: whether there were more of them than batches.
        """
        self._hungry = 0 if fed else self._hungry + 1
        self._in_pass = 0 if step <= self._meant_until else self._in_pass + 1
        self.may_skip = not self.why and self._in_pass >= self._first
        why, source = self._changed, self._source
        if why:
            pass
        elif source is None or self._hungry > _STEPS:
            why = OWN_DATA
        else:
            if own:
                self._own[opt] = step
                # This one's is the last; without a call for each, for it is asked in every step.
                several = len(self._own) > 1 and sorted(self._own.values())[-2] > step - WINDOW
            if several:
                why = PAIR
            else:
                first, source.trained = not source.trained, True
                another, self._any = first and self._any, True
                why = REPLACED if another and not source.why else source.why
        if why:
            self._changed, self._seen = "", why
            self._until = step + WINDOW
        elif not self.why or step <= self._until:
            return False
        else:
            self._seen = ""
        if self._seen == self.why:
            return False
        self.why = self._seen
        self.may_skip = not self.why and self._in_pass >= self._first
        self._records += 1
        return self._records <= _RECORDS


def _length(data: object) -> int:
    """How many samples there are; -1 where nobody says so."""
    try:
        return len(data)  # type: ignore[arg-type]
    except Exception:  # a dataset of the user's
        return -1


def _alive(data: object) -> Callable[[], object]:
    """Gives the data as long as it lives; a list cannot be asked and counts as alive."""
    try:
        return weakref.ref(data)
    except TypeError:
        return lambda: True


def _why(iterator: Any, data: object, length: int) -> str:
    if hasattr(iterator, "_dataset_kind"):
        # A stream that knows its length goes over the same data again.
        return STREAM if iterator._dataset_kind == _DatasetKind.Iterable and length < 0 else ""
    # What can be gone through only once makes its data as it goes.
    return OWN_DATA if length < 0 or isinstance(data, Iterator) else ""
