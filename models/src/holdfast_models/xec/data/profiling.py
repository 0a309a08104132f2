"""How fast events are loaded, and what takes the time, without the step that uses them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from .event_files import EventFile


class LoadingSpeed(NamedTuple):
    """Seconds of one process."""

    events: int
    read: float
    """Reading and decompressing."""
    transform: float
    """Normalising; 0 where the device does it."""
    batch: float
    """Copying events into batches."""

    @property
    def per_second(self) -> float:
        """Events."""
        return self.events / max(self.read + self.transform + self.batch, 1e-9)

    def line(self) -> str:
        """For the terminal."""
        return (
            f"loading: {self.per_second:.0f} events/s in one process; {self.events} events took "
            f"{self.read:.2f} s to read, {self.transform:.2f} s to normalise, {self.batch:.2f} s "
            "to batch"
        )


def measure_loading(
    files: Sequence[EventFile], *, chunk: int, batch: int, events: int
) -> LoadingSpeed:
    """Load events as training does, in chunks that are cut into shuffled batches."""
    before = {what: sum(file.seconds[what] for file in files) for what in ("read", "transform")}
    seen, batching = 0, 0.0
    for file in files:
        for first in range(0, len(file), chunk):
            if seen >= events:
                break
            last = min(first + chunk, len(file), first + events - seen)
            block = file.__getitems__(range(first, last)).batch
            begin = time.perf_counter()
            for which in torch.randperm(last - first).split(batch):
                for rows in block.values():
                    rows.index_select(0, which)
            batching += time.perf_counter() - begin
            seen += last - first
    spent = {what: sum(file.seconds[what] for file in files) - before[what] for what in before}
    return LoadingSpeed(seen, spent["read"], spent["transform"], batching)
