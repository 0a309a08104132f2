"""Which lines read numbers out of tensors (``.item()``, ``float(x)``, ``if x``), and how often.

On a GPU each read waits for the device; on a CPU a line that reads every element spends its time
in Python. The reading methods are replaced for the steps looked at and put back after them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType

from ...records.lines import ReadingLine, StepPace, TensorReads
from ...source.frames import frames_from
from ...source.loops import loop_of
from ...source.ownership import kind_of
from .measured_lines import MeasuredLines
from .profiles import StepLoop, StepProfile

_DEPTH = 40
# Lines that are written down.
_LINES = 8


@dataclass(slots=True)
class Read:
    """The reads of one line."""

    name: str
    direct: bool
    """The line reads by itself; otherwise a library that it calls does."""
    count: int = 0
    seconds: float = 0.0


class ReadTimes:
    """Counts the reads of one step.

    Args:
        profile: the lines of such a step.
        turn: the loop of the steps.
    """

    def __init__(self, profile: StepProfile, turn: StepLoop | None) -> None:
        self.lines: dict[tuple[CodeType, int], Read] = {}
        self._profile = profile
        self._turn = turn

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
                    read = self.lines[code, frame.f_lineno] = Read(name, not depth)
                read.count += 1
                read.seconds += seconds
                return

    def measured(self, times: StepPace) -> TensorReads:
        """What an Event says: the lines that read most, each with the loop around it.

        Args:
            times: of the run so far.
        """
        places = MeasuredLines()
        most = sorted(self.lines.items(), key=lambda item: (-item[1].count, -item[1].seconds))
        return TensorReads(
            reads=tuple(
                ReadingLine(
                    path=(places.number((code.co_filename, line)),),
                    function=code.co_name,
                    read=read.name,
                    direct=read.direct,
                    count=read.count,
                    seconds=round(read.seconds, 8),
                    loop_seconds=round(self._loop_seconds(code.co_filename, line), 8),
                )
                for (code, line), read in most[:_LINES]
            ),
            models=round(self._profile.models, 1),
            step_seconds=round(self._profile.seconds, 8),
            times=times,
            **places.reported(),
        )

    def _loop_seconds(self, file: str, number: int) -> float:
        """Seconds of a line with the loop around it; of the line alone in the loop of the steps."""
        turn, (first, last) = self._turn, loop_of(file, number)
        steps = turn.first if turn is not None and turn.path[turn.depth][0] == file else 0
        if first <= steps <= last or not first:
            first = last = number
        own = [line for line in self._profile.lines if line.direct and line.spot[0] == file]
        return sum(line.seconds for line in own if first <= line.spot[1] <= last)


_switch: tuple[Callable[[], None], Callable[[], None]] | None = None
_read_times: ReadTimes | None = None


def offer(put_in: Callable[[], None], take_out: Callable[[], None]) -> None:
    """Say how the reading methods are replaced; without this there is nothing to count."""
    global _switch
    _switch = put_in, take_out


def withdraw() -> None:
    """Nothing can be replaced any more."""
    global _switch, _read_times
    _switch = _read_times = None


def open_read_times() -> ReadTimes | None:
    """The ledger at work."""
    return _read_times


def begin(profile: StepProfile | None, turn: StepLoop | None) -> bool:
    """Count from here on; False where the methods cannot be replaced."""
    global _read_times
    if _switch is None or _read_times is not None or profile is None:
        return False
    _read_times = ReadTimes(profile, turn)
    _switch[0]()
    return True


def end() -> ReadTimes | None:
    """Count no more, and put the methods back; the ledger, None where nothing was read."""
    global _read_times
    read_times, _read_times = _read_times, None
    if read_times is not None and _switch is not None:
        _switch[1]()
    return read_times if read_times is not None and read_times.lines else None
