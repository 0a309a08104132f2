"""Resident memory of the training process."""

from __future__ import annotations

import psutil


class Host:
    """Reads the process' own memory (14 microseconds a read: not on every step)."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def read(self, row: dict[str, float]) -> None:
        """Add the columns."""
        row["rss"] = float(self._process.memory_info().rss)
