"""Parameters that a script clips, in the order of the optimizer that will step with them.

Scripts clip ``model.parameters()``; an optimizer with several groups, or without frozen weights,
has the same ones in another order. What is measured before clipping must be what the step is
about, or it would be measured again after it, when the norm is gone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat

from torch import Tensor

_grad_of: Callable[[Tensor], Tensor | None] = operator.attrgetter("grad")


class ClipOrder:
    """The order of what was clipped last, which is mostly what is clipped next.

    Args:
        optimizers: gives the parameters of each.
    """

    def __init__(self, optimizers: Callable[[], Iterable[Sequence[Tensor]]]) -> None:
        self._optimizers = optimizers
        self._clipped: list[int] = []
        # Places in what is clipped: those of an optimizer, in its order, and all others.
        self._own: list[int] | None = None
        self._others: list[int] = []

    def forget(self) -> None:
        """There is another optimizer, or one has other parameters."""
        self._clipped = []

    def of(self, clipped: list[Tensor]) -> list[Tensor]:
        """The same parameters in the order of their optimizer; as they are where there is none.

        Those of no optimizer do not count while they have no gradient.
        """
        ids = list(map(id, clipped))
        if ids != self._clipped:
            self._clipped = ids
            self._learn(ids)
        if self._own is None:
            return clipped
        if self._others:
            others = map(_grad_of, map(clipped.__getitem__, self._others))
            if not all(map(operator.is_, others, repeat(None))):
                return clipped
        return list(map(clipped.__getitem__, self._own))

    def _learn(self, ids: list[int]) -> None:
        self._own = None
        places = {one: place for place, one in enumerate(ids)}
        for parameters in self._optimizers():
            own = [places.get(id(one), -1) for one in parameters]
            if own and -1 not in own and own != list(range(len(ids))):
                self._own = own
                self._others = [place for place in places.values() if place not in set(own)]
                return
