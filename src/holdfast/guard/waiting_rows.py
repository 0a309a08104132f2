"""Rows of usual steps on a CPU: those of short steps wait for each other.

Written one by one, each would find what packs it and the ring out of the processor's caches, which
takes longer than the packing. Only usual rows wait, about which nobody decides anything; what
comes after them is written after them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ..probes.cost_budget import Budget
from ..probes.step_record import StepRecord
from .optimizer_guard import OptimizerGuard

# They wait no longer than this once a step takes longer than those before.
_LATE = 0.05


class WaitingRows:
    """At most as many rows as the budget says, of one optimizer.

    Args:
        put: writes rows of an optimizer.
        budget: knows how long the steps are.
    """

    def __init__(
        self, put: Callable[[OptimizerGuard, Sequence[StepRecord]], None], budget: Budget
    ) -> None:
        self.latest: Mapping[str, float] = {}
        """The row that was written last."""
        self._put, self._budget = put, budget
        self._records = deque[StepRecord]()
        self._whose: OptimizerGuard | None = None

    def add(self, guard: OptimizerGuard, record: StepRecord, *, at_once: bool) -> None:
        """A usual step is over; ``at_once``: somebody listens."""
        records = self._records
        if records and self._whose is not guard:
            self.write()
        self._whose = guard
        records.append(record)
        if (
            at_once
            or len(records) >= self._budget.together
            or record.time - records[0].time > _LATE
        ):
            self.write()

    def write(self) -> None:
        """Write the rows of all steps that are over."""
        # Always the same queue: a signal may come between any two lines, and record an event.
        waiting, records = self._records, list[StepRecord]()
        while waiting:
            records.append(waiting.popleft())
        if records and self._whose is not None:
            self._put(self._whose, records)
