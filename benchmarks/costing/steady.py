"""Steady steps, plain against guarded in one process, in blocks that alternate.

A row that makes a step is made three times: plain, plain again, guarded. A trainer owns its loop,
so there the patches are taken out and put back between blocks of one training. A block is timed in
windows of some steps: noise of a shared host comes in bursts, which move the quantiles of windows
less than a mean of blocks. Without a GPU the clock is CPU time of this process: a machine that does
other work does not move it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from overhead import guard, synchronize
from workloads import Step

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
    added: float
    """The guarded windows' median less that of the plain ones."""
    quiet: float
    """The same of lower quartiles, which tell what a host at rest would see."""
    mean: float
    """The same of means, bursts of other work included."""
    noise: tuple[float, float]
    """Lower quartile and median of the second plain copy less the first."""
    ratio: float
    """Guarded over plain, of medians."""
    until: float
    """Seconds more than steady in the first steps, guarded less plain."""
    parts: dict[str, float] = field(default_factory=dict[str, float])
    """Microseconds of each part."""


class Blocks:
    """Microseconds per step of each window, by variant."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {name: [] for name in VARIANTS}
        self.warm: dict[str, tuple[int, float]] = {}
        """Steps and microseconds of the beginning."""

    def result(self, row: Row, parts: dict[str, float]) -> Steady:
        """What they say."""
        quartiles = [statistics.quantiles(self.times[name], n=4) for name in VARIANTS]
        lows, middles, _ = zip(*quartiles, strict=True)
        plain, _, guarded = (statistics.fmean(self.times[name]) for name in VARIANTS)
        started = {
            name: (took - steps * statistics.median(self.times[name])) / 1e6
            for name, (steps, took) in self.warm.items()
        }
        return Steady(
            row=row.name,
            plain=middles[0],
            added=middles[2] - middles[0],
            quiet=lows[2] - lows[0],
            mean=guarded - plain,
            noise=(lows[1] - lows[0], middles[1] - middles[0]),
            ratio=middles[2] / middles[0],
            until=started.get("guarded", 0.0) - started.get("plain", 0.0),
            parts=parts,
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
            found.times[name] += (_time(made[name], count) for count in _windows(steps))
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
            for count in _windows(steps):
                synchronize()
                began = _clock()
                for _ in range(count):
                    yield
                synchronize()
                found.times[name].append((_clock() - began) / count * 1e6)
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
