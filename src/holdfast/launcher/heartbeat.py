"""Heartbeat of a run: notices that nothing goes on any more, and measures where everything stands.

A row, an event or a batch that is handed out (also one of a validation) is a beat. Where no process
of the run has had one for much longer than ever before, the stacks of all processes are taken three
times, some seconds apart. What was seen becomes an Event; whether it is a hang is for RUN004.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..records.crash import NoProgress, ProgressAgain, StandingProcess
from . import stacks
from .stacks import Frame, Stacks

LONGER = 3.0
"""How much longer than the longest pause so far counts. A guess: a second validation on a busier
machine, a larger checkpoint."""
FIRST = 3.0
"""How much longer the first step may take: compilation, caches, a first batch. A guess."""
FURTHER = (1.0, 3.0, 10.0)
"""Multiples of that time at which it is looked at: what computes, or moves, may still go on."""
_LOOKS, _GAP = 3, 20.0
# More than this between two ticks is a machine that slept, a clock that was set, or Ctrl-Z.
_TICK = 2.0
_FRAMES = 30


BEFORE = ""
"""Stands for the lane of a script that has not recorded anything yet."""


@dataclass(frozen=True, slots=True)
class Starting:
    """A script before its first record: what it does until then is not seen."""

    pid: int
    progress: tuple[int, int] = (0, 0)


class RingProgress(Protocol):
    """What is looked at of the ring of one process."""

    @property
    def progress(self) -> tuple[int, int]:
        """Numbers that change while it goes on."""
        ...

    @property
    def pid(self) -> int:
        """The process."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneNews:
    """What is to be told of a lane: that nothing goes on, or that it went on after all."""

    lane: str
    record: NoProgress | ProgressAgain
    stacks: str = ""
    """All threads of all its processes."""


@dataclass(slots=True)
class _Lane:
    progress: tuple[int, int]
    silence: float = 0.0
    longest: float = 0.0
    starts: bool = True
    """Nothing has gone on yet: what it took to start is no pause of the loop."""


@dataclass(frozen=True, slots=True)
class _Look:
    """All processes of one lane at one time."""

    at: float
    processes: tuple[Stacks, ...]
    effort: tuple[float, float]
    runnable: bool
    """Whether one of them had something to compute, before it was asked."""


@dataclass(slots=True)
class _Inspection:
    next: float
    looks: dict[str, list[_Look]] = field(default_factory=dict[str, list[_Look]])


class Heartbeat:
    """Watches the rings of one run.

    Args:
        after: seconds without a beat that are looked at; never where it is 0.
        clock: seconds, for tests.
        ask: stacks of a process, for tests.
    """

    def __init__(
        self,
        after: float,
        clock: Callable[[], float] = time.monotonic,
        ask: Callable[[int], Stacks | None] = stacks.ask,
    ) -> None:
        self._after, self._clock, self._ask = after, clock, ask
        self._gap = min(_GAP, after / 4)
        self._lanes: dict[str, _Lane] = {}
        self._last = clock()
        self._inspection: _Inspection | None = None
        self._done = 0
        self._reported = False
        self._others: dict[str, tuple[int, int]] = {}

    def look(
        self,
        rings: Mapping[str, RingProgress],
        stepped: Mapping[str, bool],
        others: Mapping[str, RingProgress] | None = None,
    ) -> list[LaneNews]:
        """Called at every tick; returns what is to be told.

        Args:
            rings: of the processes that train, by lane.
            stepped: whether there was a step already, by lane.
            others: of ranks that another supervisor looks after; those here may wait for them.
        """
        now = self._clock()
        elapsed, self._last = min(_TICK, now - self._last), now
        if not self._after or not rings:
            return []
        beat = self._count(rings, stepped, elapsed)
        now_of_others = {name: ring.progress for name, ring in (others or {}).items()}
        if now_of_others != self._others:
            self._others = now_of_others
            beat = beat or min(self._lanes[lane].silence for lane in rings) or 1e-9
            for lane in self._lanes.values():
                lane.silence = 0.0
        if beat:
            reported, self._reported = self._reported, False
            self._inspection, self._done = None, 0
            again = ProgressAgain(seconds=round(beat, 1))
            return [LaneNews(lane=lane, record=again) for lane in rings if reported]
        silence = min(self._lanes[lane].silence for lane in rings)
        limit = max(self._limit(self._lanes[lane], stepped[lane]) for lane in rings)
        if self._done >= len(FURTHER) or silence < FURTHER[self._done] * limit:
            return []
        return self._examine(rings, silence, limit)

    def _count(
        self, rings: Mapping[str, RingProgress], stepped: Mapping[str, bool], elapsed: float
    ) -> float:
        """Count the silence of every lane; the length of the one that ends now, 0.0 for none."""
        ended = 0.0
        known = [self._lanes[name].silence for name in rings if name in self._lanes]
        silent = min(known, default=0.0)
        for name, ring in rings.items():
            progress = ring.progress
            if name not in self._lanes:
                # Asked where it stands, a script opens its lane: that is no progress.
                before = self._lanes.pop(BEFORE, None)
                self._lanes[name] = _Lane(progress, before.silence if before else 0.0)
            lane = self._lanes[name]
            if progress != lane.progress:
                ended = max(ended, silent, 1e-9)
                if stepped[name] and not lane.starts:
                    lane.longest = max(lane.longest, lane.silence)
                lane.progress, lane.silence, lane.starts = progress, 0.0, False
            elif lane.silence < 5.0 or not stacks.is_stopped(ring.pid):
                lane.silence += elapsed
        return ended

    def _limit(self, lane: _Lane, stepped: bool) -> float:
        return max(self._after * (1.0 if stepped else FIRST), LONGER * lane.longest)

    def _examine(
        self, rings: Mapping[str, RingProgress], silence: float, limit: float
    ) -> list[LaneNews]:
        """Take the stacks a few times; the events once that is done."""
        if self._inspection is None:
            self._inspection = _Inspection(silence)
        if silence < self._inspection.next:
            return []
        self._inspection.next = silence + self._gap
        for name, ring in rings.items():
            pids = stacks.family(ring.pid)
            runnable = any(map(stacks.is_runnable, pids))
            found = [one for one in map(self._ask, pids) if one is not None]
            look = _Look(self._clock(), tuple(found), stacks.effort(pids), runnable)
            self._inspection.looks.setdefault(name, []).append(look)
        if max(map(len, self._inspection.looks.values())) < _LOOKS:
            return []
        seen, self._inspection, self._done = self._inspection.looks, None, self._done + 1
        self._reported |= any(looks[-1].processes for looks in seen.values())
        return [
            self._seen(name, rings[name].pid, looks, silence, limit)
            for name, looks in seen.items()
            if name in rings
        ]

    def _seen(
        self, name: str, pid: int, looks: Sequence[_Look], silence: float, limit: float
    ) -> LaneNews:
        lane, last = self._lanes[name], looks[-1]
        main = last.processes[0] if last.processes else None
        seconds = max(1e-9, last.at - looks[0].at)
        cpu, moved = (b - a for a, b in zip(looks[0].effort, last.effort, strict=True))
        worker = None if main is None else _worker(last.processes[1:], main.reported.waits_for)
        record = NoProgress(
            **({} if main is None else vars(_place(main))),
            seconds=round(silence, 1),
            limit=round(limit, 1),
            longest=round(lane.longest, 3),
            cpu=round(cpu / seconds, 3),
            bytes_per_second=round(moved / seconds),
            runnable=sum(look.runnable for look in looks) > 1,
            moves=len({_lines(look, of_user=True) for look in looks}) > 1,
            moves_inside=len({_lines(look, of_user=False) for look in looks}) > 1,
            processes=len(last.processes),
            gone=True if main is None and not stacks.is_there(pid) else None,
            threads=None if main is None else main.threads,
            frames=None
            if main is None
            else tuple((f.file, f.line, f.function) for f in main.frames[:_FRAMES]),
            stuck_worker=None if worker is None else _place(worker, worker.pid),
        )
        text = "\n\n".join(f"process {one.pid}\n{one.text}" for one in last.processes)
        return LaneNews(lane=name, record=record, stacks=text)


def _lines(look: _Look, *, of_user: bool) -> tuple[tuple[Frame, ...], ...]:
    """Where all processes of a look stand."""
    return tuple(
        tuple(frame for frame in one.frames if frame.of_user or not of_user)
        for one in look.processes
    )


def _place(process: Stacks, pid: int | None = None) -> StandingProcess:
    """The line of the script at which a process stands, and what it calls and loads there."""
    line, inner = process.line, process.frames[0] if process.frames else None
    reported: dict[str, Any] = {"pid": pid, **process.reported.measured()}
    if line is not None:
        reported |= {"file": line.file, "line": line.line, "function": line.function}
        reported["excerpt"] = line.excerpt()
    if inner is not None and inner is not line:
        reported["inside"] = f"{inner.function} ({inner.file}:{inner.line})"
    return StandingProcess(**reported)


def _worker(processes: Sequence[Stacks], number: int | None) -> Stacks | None:
    """The worker that is waited for: the one that says so, else the only one at a user's line."""
    for process in processes:
        if number is not None and process.reported.worker == number:
            return process
    busy = [one for one in processes if one.line is not None and not one.reported.measured()]
    return busy[0] if number is not None and len(busy) == 1 else None
