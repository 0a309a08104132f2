"""Whether a state is damaged: it holds NaN or infinity that was not there from the start."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from ..checkpoint.finite import first_nonfinite, is_finite, nonfinite_places
from ..checkpoint.training_state import TrainingState, loose
from ..checkpoint.tree import flatten, paths
from .live_state import LiveState
from .snapshots import Snapshot


class Damage:
    """Finds it in states, by what buffers held in the first snapshot that has them.

    A mask of infinities in a buffer is meant so. The buffers of the first snapshot are copied once
    they are on the host, and looked into when a state is judged: steps read no tensor.
    """

    def __init__(self, live: LiveState) -> None:
        self._live = live
        self._known: set[str] = set()
        self._meant: dict[str, Tensor | None] = {}
        self._kept: dict[str, Tensor] = {}
        """Buffers of first snapshots that nobody has looked into yet."""
        self._first: tuple[Snapshot, Collection[str]] | None = None
        """A snapshot that has buffers for the first time, and which."""
        # Ranks ask each other beside the training.
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Other models are trained from now on."""
        with self._lock:
            self._known, self._meant, self._kept, self._first = set(), {}, {}, None

    def settle(self, *, wait: bool = False) -> None:
        """Keep the buffers of the first snapshot once they are copied: it will be overwritten."""
        with self._lock:
            if self._first is not None and (wait or self._first[0].ready):
                (snapshot, names), self._first = self._first, None
                found = _named(snapshot.state(), names)
                self._kept |= {name: tensor.clone() for name, tensor in found.items()}

    def saw(self, snapshot: Snapshot, state: TrainingState) -> None:
        """A snapshot was taken of these objects."""
        new = state.buffers().keys() - self._known
        if new and self._first is None:
            self._first = snapshot, new
            self._known |= new
            self.settle()

    def meant(self, tree: Mapping[str, Any]) -> Mapping[str, Tensor | None]:
        """What is no damage in this state, as ``first_nonfinite`` takes it."""
        self.settle(wait=True)
        with self._lock:
            if not self._known:  # no snapshot was taken
                self._kept = _named(tree, self._live.training_state().buffers())
            for name, tensor in self._kept.items():
                if not is_finite(tensor):
                    self._meant[name] = nonfinite_places(tensor)
            self._kept = {}
        return {**self._meant, **loose(tree)}

    def of(self, tree: Mapping[str, Any]) -> str | None:
        """The name of the first tensor that is damaged; None where the state is good."""
        skeleton, tensors = flatten(tree)
        return first_nonfinite(paths(skeleton), tensors, self.meant(tree))

    def good(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot is not damaged; waits for its copy."""
        snapshot.held += 1
        try:
            return self.of(snapshot.state()) is None
        finally:
            snapshot.release()


def _named(tree: Mapping[str, Any], names: Collection[str]) -> dict[str, Tensor]:
    skeleton, tensors = flatten(tree)
    found = zip(paths(skeleton), tensors, strict=True)
    return {name: tensor for name, tensor in found if name in names}
