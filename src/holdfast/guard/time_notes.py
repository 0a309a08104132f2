"""Keeps what exams of the time have found until it is sure and worth saying."""

from __future__ import annotations

from typing import Any

from ..exams.training import Training
from .time_causes import Found

# Seconds lost before anything is said.
_WORTH = {"input_bound": 0.15, "stall": 0.08, "host_reads": 0.03, "slow_down": 0.0}
# Kinds of slow-down that something counted proves, not only time.
_PROVEN = (
    "history", "hooks", "nested", "bigger_batches", "more_parameters", "retries", "clocks",
)  # fmt: skip
# Those of a device have no line.
_PLACELESS = ("retries", "clocks")

Key = tuple[str, str, int]


class TimeNotes:
    """What was found about one run."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._pending: dict[Key, Found] = {}
        self._told: set[Key] = set()
        self._suspected: set[Key] = set()

    def note(self, found: Found) -> bool:
        """Take what was found; False where another exam has to find it again first."""
        key = found.kind, str(found.data.get("file", "")), int(found.data.get("line", 0))
        if not key[2] and found.data.get("what") not in _PLACELESS:
            return False
        if _by_chance(found) and key not in self._suspected:
            self._suspected.add(key)
            return False
        if key not in self._told:
            self._pending[key] = found
        # Work of no known kind may hide what is behind it.
        return found.kind == "slow_down" or found.data.get("what") not in ("work", "loader")

    def settle(self, seconds: float) -> None:
        """Say what has cost enough by now, ``seconds`` into the run."""
        for key, found in list(self._pending.items()):
            lost = found.share * seconds
            # Nobody knows what a wait for a device has cost.
            if lost >= _WORTH[key[0]] or found.data.get("waits"):
                del self._pending[key]
                self._told.add(key)
                if key[0] != "slow_down" and ("slow_down", *key[1:]) in self._told:
                    found.data["consequence"] = "TPT004"
                share = round(found.share, 3)
                self.tell(key[0], {"lost": round(lost, 3), "share": share, **found.data})

    def tell(self, kind: str, data: dict[str, Any]) -> None:
        """Write it down."""
        self._training.record(kind, data)


def _by_chance(found: Found) -> bool:
    """Whether another process may have made this line slow, at just that time."""
    what = found.data.get("what")
    if found.kind == "slow_down":
        return what not in _PROVEN and found.data.get("counted") is not True
    if found.kind == "stall":
        return what == "work" or found.data.get("every") == 1
    return what == "loop"
