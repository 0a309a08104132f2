"""Which parameters of an optimizer have gradients.

Mostly all of them do, in every step. Frozen layers and heads that are not used have none, and where
tasks take turns each has others than the one before.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from itertools import compress, count, repeat

from torch import Tensor

from .host_norms import HostNorms

# Patterns that are remembered; where there are more, every step is asked about anew.
_MOST = 16

_is_there: Callable[[Tensor | None], bool] = functools.partial(operator.is_not, None)


class Presence:
    """The parameters with gradients in this step, and how those are measured on the host."""

    def __init__(self) -> None:
        self.positions: Sequence[int] = ()
        """Of the parameters that have gradients: the same object as long as they are the same."""
        self.norms = HostNorms()
        # By which of them are there. All of them: so many; else 0.
        self._known: dict[bytes, tuple[Sequence[int], HostNorms]] = {}
        self._all = 0

    def learn(self, grads: Sequence[Tensor | None]) -> list[Tensor]:
        """The gradients that there are; what is not known of them is asked."""
        there, found = bytes(map(_is_there, grads)), [g for g in grads if g is not None]
        if there not in self._known:
            if len(self._known) == _MOST:
                self._known.clear()
            self._known[there] = list(compress(count(), there)), HostNorms()
            self._known[there][1].learn(found)
        self._are(there)
        return found

    def known(self, grads: list[Tensor]) -> list[Tensor] | None:
        """The gradients that there are, as in a step before; None where there was none like it."""
        if len(grads) == self._all and not any(map(operator.is_, grads, repeat(None))):
            return grads
        there = bytes(map(_is_there, grads))
        if there not in self._known:
            return None
        self._are(there)
        return [grad for grad in grads if grad is not None]

    def _are(self, there: bytes) -> None:
        self.positions, self.norms = self._known[there]
        self._all = len(there) if len(self.positions) == len(there) else 0


def present(grads: list[Tensor], positions: Sequence[int]) -> list[Tensor] | None:
    """The gradients that there are, where they are those at these positions; otherwise None."""
    if not any(map(operator.is_, grads, repeat(None))):
        return grads if len(grads) == len(positions) else None
    if list(compress(count(), map(_is_there, grads))) != positions:
        return None
    return [grad for grad in grads if grad is not None]
