"""Steady steps, plain against guarded in one process, in blocks that alternate.

A row that makes a step is made three times: plain, plain again, guarded. A trainer owns its loop,
so there the patches are taken out and put back between blocks of one training. Without a GPU the
clock is CPU time of this process: a machine that does other work does not move it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import sub, truediv

from overhead import guard, synchronize
from workloads import Step

from .parts import PartTimers
from .rows import CUDA, Row

VARIANTS = ("plain", "again", "guarded")
# Steps after which a plain loop is steady; the guard looks closely at the first 256.
_PLAIN = 30
# Steps after a switch that are not timed: the guard takes its full path, then a shorter one.
_AFTER_SWITCH = 8
_clock = time.perf_counter if CUDA else time.process_time


@dataclass(kw_only=True)
class Steady:
    """Microseconds per step, and what the guard adds."""

    row: str
    plain: float
    """Lower quartile over the blocks."""
    added: float
    """Median over rounds of guarded less plain."""
    spread: tuple[float, float]
    """Its quartiles."""
    ratio: float
    """Median over rounds of guarded over plain."""
    noise: float
    """The same of plain over plain."""
    until: float
    """Seconds more than steady in the first steps, guarded less plain."""
    parts: dict[str, float] = field(default_factory=dict[str, float])
    """Microseconds of each part."""


class Blocks:
    """Milliseconds per step of each block, by variant."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {name: [] for name in VARIANTS}
        self.warm: dict[str, tuple[int, float]] = {}
        """Steps and microseconds of the beginning."""

    def result(self, row: Row, parts: dict[str, float]) -> Steady:
        """What they say."""
        plain, again, guarded = (self.times[name] for name in VARIANTS)
        added = sorted(map(sub, guarded, plain))
        low, middle, high = statistics.quantiles(added, n=4)
        started = {
            name: (took - steps * statistics.median(self.times[name])) / 1e6
            for name, (steps, took) in self.warm.items()
        }
        return Steady(
            row=row.name,
            plain=statistics.quantiles(plain, n=4)[0],
            added=middle,
            spread=(low, high),
            ratio=statistics.median(map(truediv, guarded, plain)),
            noise=statistics.median(map(truediv, again, plain)),
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
            found.times[name].append(_time(made[name], steps))
    guard(True)


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
            synchronize()
            began = _clock()
            for _ in range(steps):
                yield
            synchronize()
            found.times[name].append((_clock() - began) / steps * 1e6)
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
