"""Interval between snapshots: as in the settings, unless that would cost too much.

What one costs is the host's time for it and, on a GPU, how long the optimizer stood still before
the copies were through, which two events tell once both have passed; nothing waits for them.
"""

from __future__ import annotations

import math
from collections import deque

import torch

from ..config import RollbackSettings
from ..probes.ranks import ranks

_LONGEST = 100_000
# The first snapshots take longer than those that follow: an interval that one of them asks for is
# reached in steps of this factor, with the snapshots in between to correct it. A choice.
_LEAP = 4
# A shorter interval than this costs more than ranks talking about it; a choice.
_CLEARLY = 1.5


class Pace:
    """Steps from one snapshot to the next."""

    def __init__(self, settings: RollbackSettings) -> None:
        self.every = settings.every
        self.wanted = settings.every
        """What this process would choose; with several ranks they agree on ``every``."""
        self.seconds = 0.0
        self._settings = settings
        self._last: tuple[int, float] | None = None
        self._recent: deque[float] = deque(maxlen=5)
        self._halt: tuple[torch.cuda.Event, torch.cuda.Event] | None = None

    def taken(self, step: int, seconds: float, now: float) -> None:
        """One was taken after a step, in so many seconds of the host's time."""
        self._add_halt()
        last, self._last = self._last, (step, now)
        if last is not None and step > last[0] and self._recent:
            per_step = (now - last[1]) / (step - last[0])
            # One that was interrupted says nothing about the next.
            usual = sorted(self._recent)[(len(self._recent) - 1) // 2]
            allowed = usual / max(1e-9, self._settings.cost * per_step)
            longest = min(_LONGEST, _LEAP * max(self.wanted, self._settings.every))
            self.wanted = max(self._settings.every, min(math.ceil(allowed), longest))
            if ranks() == 1:
                self.every = self.wanted
        self._recent.append(seconds)
        self.seconds += seconds

    @property
    def too_often(self) -> bool:
        """Whether several ranks should agree on a longer interval."""
        return self.wanted > _CLEARLY * self.every

    def halted(self, ready: torch.cuda.Event, copied: torch.cuda.Event) -> None:
        """The optimizer was ready, and could go on when the copies were through."""
        self._halt = ready, copied

    def _add_halt(self) -> None:
        """Count what the optimizer waited for the last snapshot, if the device is past it."""
        halt, self._halt = self._halt, None
        if halt is None or not self._recent or not all(event.query() for event in halt):
            return
        ready, copied = halt
        seconds = max(0.0, ready.elapsed_time(copied)) / 1e3
        self._recent[-1] += seconds
        self.seconds += seconds
