"""What a step spares of torch: now and then a step goes torch's own way, to compare.

The guard takes host time and gives some back, because it calls torch's kernels without torch's walk
to them (``prepared_update``, ``direct_calls``). Both ways come to the same bits, so
one step in 32 goes torch's own way and another the short one, both with a clock. Not counted is
what is spared around them: torch's wrappers of a step and of ``zero_grad``, and ``backward``.
"""

from __future__ import annotations

import statistics
import weakref
from collections import deque
from collections.abc import Callable

from ...records.times import TimeSaved

_EVERY = 16
"""Steps from one with a clock to the next; every second one goes torch's own way."""
_KEPT = 256
# Of so few a quartile says nothing; from then on they are told whenever there are twice as many.
_LEAST = 8
_OTHERS = 1024
"""Steps after which another optimizer asks whether the first one is still there."""


class TorchTimeSaved:
    """Compares both ways of the steps of a run.

    Args:
        tell: what was found, whenever it is worth it.
    """

    def __init__(self, tell: Callable[[TimeSaved], None]) -> None:
        self.timed = self.own = False
        """Whether the step at work has a clock, and whether it goes torch's own way."""
        self._tell = tell
        self._of: Callable[[], object] = lambda: None
        self._seconds, self._steps, self._turns = 0.0, 0, 0
        self._found: dict[bool, deque[float]] = {own: deque(maxlen=_KEPT) for own in (True, False)}
        self._next = _LEAST

    def took(self, seconds: float, *, steps: int = 0) -> None:
        """A part of the step that can go either way is over; ``steps``: it was an optimizer's."""
        self._seconds += seconds
        self._steps += steps

    def turn(self, steps: object) -> int:
        """The steps of an optimizer are at a turn; after how many of them the next one is.

        The first optimizer's tell the time; all that steps meanwhile has a clock.
        """
        if self._of() is None:
            self._of = weakref.ref(steps)
        elif self._of() is not steps:
            return _OTHERS
        if self.timed:
            self._found[self.own].append(self._seconds / max(1, self._steps))
            self.timed = self.own = False
            self._say()
            return _EVERY - 1
        self._seconds, self._steps, self._turns = 0.0, 0, self._turns + 1
        self.timed, self.own = True, self._turns % 2 == 0
        return 1

    def _say(self) -> None:
        samples = min(map(len, self._found.values()))
        if samples < self._next:
            return
        self._next = 2 * samples
        # Whatever comes between them makes some longer, and none shorter.
        own, short = (statistics.quantiles(self._found[way], n=4)[0] for way in (True, False))
        self._tell(TimeSaved(seconds=max(0.0, own - short), own=own, samples=samples))
