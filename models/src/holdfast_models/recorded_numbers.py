"""The records of a run as series of numbers, for detectors of any family; never imports torch.

The trainer notes them every so many steps. A record belongs to the first row that is not older
than it, and is judged with that row, once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast import Detector, Window


@dataclass(frozen=True)
class NotedNumbers:
    """What was noted after a step: finite numbers by name."""

    step: int
    values: Mapping[str, float]

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def get(self, name: str) -> float:
        """The same, NaN where it was not noted."""
        return self.values.get(name, math.nan)


class RecordDetector(Detector):
    """Looks at the rows that come with a record of one kind, and at no others."""

    kind = "numbers"
    needs = ("loss",)
    since = "0.1"
    within = 150
    judges_events = True

    def suspects(self, window: Window) -> NDArray[np.bool_]:
        """The new rows that are the first to know of a record."""
        noted = [event.step for event in window.events if event.kind == self.kind]
        steps = np.maximum.accumulate(window.rows["step"])
        marked = np.zeros(len(window) + 1, dtype=np.bool_)
        marked[np.searchsorted(steps, noted)] = True  # the last place: no row knows of it yet
        return marked[len(window) - window.fresh : -1]

    def news(self, window: Window, *names: str) -> list[NotedNumbers]:
        """Records with these numbers, oldest first; none unless the last is the judged row's."""
        found = series(window, self.kind, *names)
        before = window.rows["step"][:-1]
        if not found or (before.size and found[-1].step <= before.max()):
            return []
        return found


def series(window: Window, kind: str, *names: str) -> list[NotedNumbers]:
    """Records up to the judged row that have all these numbers, oldest first.

    Those that a resumed run has made again count once, as they were the last time.
    """
    found: list[NotedNumbers] = []
    for event in window.events:
        if event.kind != kind or event.step > window.step:
            continue
        values = {name: float(v) for name, v in event.data.items() if _is_finite(v)}
        if not all(name in values for name in names):
            continue
        while found and found[-1].step >= event.step:
            found.pop()
        found.append(NotedNumbers(event.step, values))
    return found


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
