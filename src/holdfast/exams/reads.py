"""Which lines read numbers out of tensors (``.item()``, ``float(x)``, ``if x``), and how often.

On a GPU each read waits for the device; on a CPU a line that reads every element spends its time
in Python. The reading methods are replaced for the steps looked at and put back after them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType

from ._place import frames_from, kind_of

_DEPTH = 40


@dataclass(slots=True)
class Read:
    """The reads of one line."""

    name: str
    count: int = 0
    seconds: float = 0.0


class Ledger:
    """Counts the reads of the steps between ``open`` and ``close``."""

    def __init__(self) -> None:
        self.lines: dict[tuple[CodeType, int], Read] = {}
        self.steps = 0

    def saw(self, name: str, seconds: float) -> None:
        """A tensor was read; the line is the user's innermost."""
        for depth, frame in enumerate(frames_from(sys._getframe(2))):
            code = frame.f_code
            kind = kind_of(code.co_filename)
            # What torch reads for its own purposes is not the user's to change.
            if depth > _DEPTH or (not depth and kind == "torch"):
                return
            if kind == "user":
                read = self.lines.get((code, frame.f_lineno))
                if read is None:
                    read = self.lines[code, frame.f_lineno] = Read(name)
                read.count += 1
                read.seconds += seconds
                return


_switch: tuple[Callable[[], None], Callable[[], None]] | None = None
_ledger: Ledger | None = None


def offer(put_in: Callable[[], None], take_out: Callable[[], None]) -> None:
    """Say how the reading methods are replaced; without this there is nothing to count."""
    global _switch
    _switch = put_in, take_out


def withdraw() -> None:
    """Nothing can be replaced any more."""
    global _switch, _ledger
    _switch = _ledger = None


def open_ledger() -> Ledger | None:
    """The ledger at work."""
    return _ledger


def begin() -> Ledger | None:
    """Count from here on; None where the methods cannot be replaced."""
    global _ledger
    if _switch is None or _ledger is not None:
        return None
    _ledger = Ledger()
    _switch[0]()
    return _ledger


def end() -> None:
    """Count no more, and put the methods back."""
    global _ledger
    if _ledger is not None and _switch is not None:
        _ledger = None
        _switch[1]()
