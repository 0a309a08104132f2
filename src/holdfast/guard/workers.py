"""Do the loader's workers grow? Reads one of them now and then, and looks for the cause."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter
from types import FrameType
from typing import Any

from ..exams import sample_growth, worker_samples

_EVERY = 8
_READINGS = 5
# Seconds between two looks of a worker at itself, and looks for which an answer is waited for.
_APART = 0.15
_PATIENCE = 16
# Bytes per batch and worker that are growth.
_LEAST = 24 << 10


class Workers:
    """The workers of the loader that is at work.

    Args:
        tell: takes what is found.
        fetch: whether samples may be fetched in this process to see what grows.
    """

    def __init__(self, tell: Callable[[dict[str, Any]], None], *, fetch: bool) -> None:
        self._tell = tell
        self._may_fetch = fetch
        self._iterator: Callable[[], Any] = lambda: None
        self._fetched = 0
        self._readings: list[tuple[int, int]] = []
        self._facts: dict[str, Any] = {}
        self._began, self._asked = 0.0, math.inf
        self._done = False

    def fetched(self, iterator: Any, frame: FrameType) -> None:
        """A batch has come."""
        if self._done or getattr(iterator, "_workers", None) is None:
            return
        if iterator is not self._iterator():
            self._iterator = weakref.ref(iterator)
            self._fetched, self._readings = 0, []
            self._began = perf_counter()
        self._fetched += 1
        if self._fetched % _EVERY:
            return
        private = _private(iterator._workers[0].pid)
        if private is None:
            self._done = True
            return
        self._readings.append((self._fetched, private))
        # What comes first is what any worker needs: imports, the first pages.
        recent = self._readings[1:][-_READINGS:]
        if len(recent) == _READINGS and all(
            b[1] - a[1] > _LEAST * (b[0] - a[0]) / len(iterator._workers)
            for a, b in pairwise(recent)
        ):
            facts = self._facts = self._facts or self._look(iterator, frame)
            if not facts:
                return
            # What is asked before it grows may be a cache, which is full after one pass over the
            # data. Where the workers live longer than that, time will tell.
            if facts.get("mild") and facts.get("line") and iterator._persistent_workers:
                if self._fetched < 2 * len(iterator._index_sampler):
                    return
                facts["mild"] = False
            self._done = True
            self._say(iterator, recent, facts)

    def _look(self, iterator: Any, frame: FrameType) -> dict[str, Any]:
        """The facts; nothing while a worker that was asked has no answer."""
        pid, dataset = iterator._workers[0].pid, iterator._dataset
        now = perf_counter()
        # It must have made something in between.
        batch = (now - self._began) / self._fetched * len(iterator._workers)
        apart = max(_APART, 1.5 * batch)
        self._asked = min(self._asked, now)
        waits = now - self._asked < _PATIENCE * apart
        if not self._may_fetch and worker_samples.order_growth(pid, apart) and waits:
            answer = worker_samples.growth(pid)
            return {} if answer is None else sample_growth.told_by_worker(dataset, answer)
        return sample_growth.examine(dataset, frame, fetch=self._may_fetch)

    def _say(self, iterator: Any, recent: list[tuple[int, int]], facts: dict[str, Any]) -> None:
        (first, low), (last, high) = recent[0], recent[-1]
        count = len(iterator._workers)
        each = (high - low) / (last - first) * count
        self._tell({"bytes": each, "workers": count, "steps": last, **facts})


def _private(pid: int | None) -> int | None:
    """Bytes that a process shares with nobody; None where the system does not tell."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as table:
            return sum(
                int(line.split()[1]) << 10 for line in table if line.startswith(b"Private_Dirty")
            )
    except (OSError, ValueError, IndexError):
        return None
