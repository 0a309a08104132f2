"""Steady steps, plain against guarded in one process, in blocks that alternate.

A row that makes a step is made three times: plain, plain again, guarded. A trainer owns its loop,
so there the patches are taken out and put back between blocks of one training. Blocks are compared
within their round, of one block of each: a machine that is slower for seconds is slower for all
three. A block's time is the median of some windows, which a burst of other work does not move.
Without a GPU the clock is CPU time of this process.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import sub
from typing import Any

from overhead import guard, synchronize
from workloads import Step

from .paired import Paired
from .parts import PartTimers
from .rows import CUDA, Row

VARIANTS = ("plain", "again", "guarded")
# Steps after which a plain loop is steady; the guard looks closely at the first 256.
_PLAIN = 30
# Steps after a switch that are not timed: the guard takes its full path, then a shorter one.
_AFTER_SWITCH = 8
_WINDOW = 8  # steps that are timed together: as many as the guard lets pass before it writes rows
_clock = time.perf_counter if CUDA else time.process_time


@dataclass(kw_only=True)
class Steady:
    """Microseconds per step, and what the guard adds."""

    row: str
    plain: float
    """Median over windows."""
    added: Paired
    """Guarded less the mean of both plain copies, by rounds."""
    again: Paired
    """The same of the second plain copy less the first: what the figures are worth."""
    cpu: Paired
    """As ``added``, in CPU time of the whole process."""
    mean: float
    """Of all windows: with bursts of other work and what is seldom done."""
    ratio: float
    """Guarded over plain: the median over rounds."""
    until: float
    """Seconds more than steady in the first steps, guarded less plain."""
    parts: dict[str, float] = field(default_factory=dict[str, float])
    """Microseconds of each part."""

    @classmethod
    def read(cls, reported: dict[str, Any]) -> Steady:
        """From what ``asdict`` made of it."""
        paired: dict[str, Any] = {
            name: Paired(**reported[name]) for name in ("added", "again", "cpu")
        }
        return cls(**reported | paired)


class Blocks:
    """Microseconds per step of each window, by variant."""

    def __init__(self) -> None:
        self.times: dict[str, list[list[float]]] = {name: [] for name in VARIANTS}
        """Windows of each round."""
        self.cpu: dict[str, list[float]] = {name: [] for name in VARIANTS}
        """CPU time of each round."""
        self.warm: dict[str, tuple[int, float]] = {}
        """Steps and microseconds of the beginning."""

    def result(self, row: Row, parts: dict[str, float]) -> Steady:
        """What they say."""
        windows = {name: [x for one in self.times[name] for x in one] for name in VARIANTS}
        plain, _, guarded = (statistics.fmean(windows[name]) for name in VARIANTS)
        started = {
            name: (took - steps * statistics.median(windows[name])) / 1e6
            for name, (steps, took) in self.warm.items()
        }
        rounds = {name: [statistics.median(one) for one in self.times[name]] for name in VARIANTS}
        return Steady(
            row=row.name,
            plain=statistics.median(rounds["plain"]),
            added=_added(rounds),
            again=Paired.of(list(map(sub, rounds["again"], rounds["plain"]))),
            cpu=_added(self.cpu),
            mean=guarded - plain,
            ratio=statistics.median(
                2 * guarded / (plain + again)
                for plain, again, guarded in zip(*rounds.values(), strict=True)
            ),
            until=started.get("guarded", 0.0) - started.get("plain", 0.0),
            parts=parts,
        )


def _added(rounds: dict[str, list[float]]) -> Paired:
    """What the guarded blocks took more than the plain ones of their rounds."""
    return Paired.of(
        [
            guarded - (plain + again) / 2
            for plain, again, guarded in zip(*rounds.values(), strict=True)
        ]
    )


def compare(row: Row, blocks: int, steps: int) -> Blocks:
    """Time the blocks of a row, in a process that has an engine."""
    found = Blocks()
    if row.make is not None:
        _alternate(row, row.make, blocks, steps, found)
    else:
        _switch(row, blocks, steps, found)
    return found


def measure(row: Row, blocks: int, steps: int, renew: Callable[[], None]) -> Steady:
    """Time a row and its parts; ``renew`` makes a new engine, for the run with timers in it."""
    found = compare(row, blocks, steps)
    timers = PartTimers()
    timers.install()
    try:
        guard(False)
        renew()
        guard(True)
        parts = _parts(timers, row, blocks, steps)
    finally:
        timers.remove()
    if timers.missing:
        print(f"parts.PARTS is out of date: {', '.join(timers.missing)}", flush=True)
    return found.result(row, parts)


def _alternate(row: Row, make: Callable[[], Step], blocks: int, steps: int, found: Blocks) -> None:
    made: dict[str, Step] = {}
    for name in VARIANTS:
        guard(name == "guarded")
        made[name] = make()
        first = row.steady if name == "guarded" else _PLAIN
        found.warm[name] = first, _time(made[name], first) * first
    for block in range(blocks):
        for name in VARIANTS if block % 2 else reversed(VARIANTS):
            guard(name == "guarded")
            _time(made[name], _AFTER_SWITCH)
            began = time.process_time()
            windows = _windows(steps)
            found.times[name].append([_time(made[name], count) for count in windows])
            found.cpu[name].append((time.process_time() - began) / sum(windows) * 1e6)
    guard(True)


def _windows(steps: int) -> list[int]:
    """Steps of each window of a block."""
    count = max(1, steps // _WINDOW)
    return [steps // count] * count


def _time(step: Step, count: int) -> float:
    synchronize()
    began = _clock()
    for _ in range(count):
        step()
    synchronize()
    return (_clock() - began) / count * 1e6


def _switch(row: Row, blocks: int, steps: int, found: Blocks) -> None:
    """One training, in which the guard is switched off and on."""
    assert row.train is not None
    # One more: the last block is closed after the step that follows it.
    total = row.steady + blocks * len(VARIANTS) * (_AFTER_SWITCH + steps) + 1
    course = _course(row.steady, blocks, steps, found)

    def tick() -> None:
        next(course, None)

    row.train(total, tick)


def _course(first: int, blocks: int, steps: int, found: Blocks) -> Iterator[None]:
    """Called once after every step."""
    for _ in range(first):
        yield
    for block in range(blocks):
        for name in VARIANTS if block % 2 else reversed(VARIANTS):
            guard(name == "guarded")
            for _ in range(_AFTER_SWITCH):
                yield
            windows, took, before = _windows(steps), [], time.process_time()
            for count in windows:
                synchronize()
                began = _clock()
                for _ in range(count):
                    yield
                synchronize()
                took.append((_clock() - began) / count * 1e6)
            found.times[name].append(took)
            found.cpu[name].append((time.process_time() - before) / sum(windows) * 1e6)
    guard(True)


def _parts(timers: PartTimers, row: Row, blocks: int, steps: int) -> dict[str, float]:
    """Microseconds of each part in a steady step: median over blocks; an exam falls into one."""
    found: list[dict[str, float]] = []

    def course() -> Iterator[None]:
        for _ in range(row.steady):
            yield
        for _ in range(blocks):
            timers.clear()
            for _ in range(steps):
                yield
            found.append(timers.per_step(steps))

    done = course()
    total = row.steady + blocks * steps + 1
    if row.make is not None:
        step = row.make()
        for _ in range(total):
            step()
            next(done, None)
    elif row.train is not None:
        row.train(total, lambda: next(done, None))
    return {part: statistics.median(block[part] for block in found) for part in timers.spent}
