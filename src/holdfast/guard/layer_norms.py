"""Norms of every layer: every k steps, and each step around an incident."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..probes.step_record import StepRecord
from ..run import RowTable

# Around an incident they are written for this many steps on either side.
_AROUND = 8


class LayerNorms:
    """The layers of one optimizer; knows the last few steps, in case they lead to an incident."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._recent: deque[StepRecord] = deque(maxlen=_AROUND)
        self._aftermath = 0

    @property
    def excited(self) -> bool:
        """Whether every step is recorded because of an incident."""
        return self._aftermath > 0

    def write(self, records: Sequence[StepRecord], every: int) -> None:
        """Write the norms of steps that are due or belong to an incident."""
        for record in records:
            if record.bad or record.extreme:
                for earlier in self._recent:
                    self._put(earlier)
                self._recent.clear()
                self._aftermath = _AROUND
            elif self._aftermath:
                self._aftermath -= 1
            elif record.is_ordinary or record.step % every:
                record.batches = ()  # kept for its norms, not for its data
                self._recent.append(record)
                continue
            self._put(record)

    def _put(self, record: StepRecord) -> None:
        self._table.put_array(record.step, record.time, record.norms_by_layer())
