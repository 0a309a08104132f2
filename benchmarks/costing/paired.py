"""What a difference within rounds is, and how sure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

_SURE = 1.645  # standard deviations of a normal distribution that hold nine in ten


@dataclass(frozen=True)
class Paired:
    """Differences within rounds."""

    middle: float
    low: float
    """The median is between these two in nine of ten measurements, whatever the distribution."""
    high: float

    @classmethod
    def of(cls, differences: Iterable[float]) -> Paired:
        """By order statistics: as many rounds are below the median as coins show heads."""
        found = sorted(differences)
        count = len(found)
        out = max(0, math.floor((count - _SURE * math.sqrt(count)) / 2))
        return cls(statistics.median(found), found[out], found[count - 1 - out])

    def __format__(self, spec: str) -> str:
        return f"{self.middle:{spec}} ({self.low:{spec}} to {self.high:{spec}})"
