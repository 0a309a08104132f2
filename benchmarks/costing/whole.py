"""Whole short runs, wall against wall: ``python SCRIPT`` and ``holdfast run SCRIPT`` by turns.

The script notes when it begins, after its first step, after ``FIRST`` steps and after the last; the
rest is known from outside. CPU seconds can be trusted where other work on the machine makes wall
times useless: those of the script until its first step and in a steady step, and those of all
processes together, the supervisor's too.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from .rows import Row

FIRST = 20
"""Steps after which a run of one of these loops is steady, but for what is sampled."""


@dataclass(frozen=True, kw_only=True)
class WholeRun:
    """Seconds of one run."""

    start: float
    """Until the first step is over."""
    first: float
    """The steps after it, up to ``FIRST``."""
    steady: float
    """All others, per step."""
    end: float
    """From the last step to the exit of the process."""
    wall: float
    cpu_start: float
    cpu_steady: float
    cpu: float


def train(row: Row, steps: int, marks: str) -> None:
    """Train a row in this process and note the times."""
    import torch

    times: list[tuple[float, float]] = []

    def tick() -> None:
        times.append((time.time(), time.process_time()))

    torch.manual_seed(0)
    if row.make is not None:
        step = row.make()
        for _ in range(steps):
            step()
            tick()
    elif row.train is not None:
        row.train(steps, tick)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    tick()
    Path(marks).write_text(json.dumps([times[0], times[FIRST - 1], times[-1]]))


def compare(row: Row, steps: int, repeats: int) -> dict[str, list[WholeRun]]:
    """Plain and guarded runs by turns."""
    runs: dict[str, list[WholeRun]] = {"plain": [], "guarded": []}
    _one("plain", row, steps)  # libraries are read from the disk, and compiled models kept there
    for repeat in range(repeats):
        for kind in sorted(runs, reverse=bool(repeat % 2)):
            runs[kind].append(_one(kind, row, steps))
    return runs


def _one(kind: str, row: Row, steps: int) -> WholeRun:
    with tempfile.TemporaryDirectory() as folder:
        script = [sys.argv[0], "--train", row.name, "--steps", str(steps)]
        return _run(kind, [*script, "--marks", f"{folder}/marks"], folder, steps)


def command(kind: str, script: Sequence[str], folder: str) -> list[str]:
    """The command line of a run, plain or guarded."""
    under = ["-m", "holdfast", "run", "--run-dir", f"{folder}/run"] if kind == "guarded" else []
    return [sys.executable, *under, *script]


def environment() -> dict[str, str]:
    """As a user's: bytecode is written, and nobody else's settings are there."""
    dropped = ("PYTHONDONTWRITEBYTECODE", "HOLDFAST_RUN")
    return {name: value for name, value in os.environ.items() if name not in dropped}


def _run(kind: str, script: list[str], folder: str, steps: int) -> WholeRun:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    done = subprocess.run(
        command(kind, script, folder),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    ended, after = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    first, settled, last = json.loads(Path(folder, "marks").read_text())
    return WholeRun(
        start=first[0] - began,
        first=settled[0] - first[0],
        steady=(last[0] - settled[0]) / (steps - FIRST),
        end=ended - last[0],
        wall=ended - began,
        cpu_start=first[1],
        cpu_steady=(last[1] - settled[1]) / (steps - FIRST),
        cpu=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    )


HEAD = (
    "| row | start s | + | first 19 s | + | steady µs | ratio | end s | + | wall s | + "
    "| spread | CPU start s | + | CPU steady µs | ratio | CPU s | + |",
    "|---" * 18 + "|",
)


def line(row: Row, runs: dict[str, list[WholeRun]]) -> str:
    """A line of the table: plain, and what is added; medians."""
    plain, guarded = (
        {
            name.name: statistics.median(getattr(run, name.name) for run in runs[kind])
            for name in fields(WholeRun)
        }
        for kind in ("plain", "guarded")
    )
    walls = [run.wall for run in runs["plain"]]

    def more(name: str) -> str:
        return f"{plain[name]:.2f} | {guarded[name] - plain[name]:+.2f}"

    def per_step(name: str) -> str:
        return f"{plain[name] * 1e6:.0f} | {guarded[name] / plain[name]:.3f}"

    return (
        f"| {row.name} | {more('start')} | {more('first')} | {per_step('steady')} | {more('end')} "
        f"| {more('wall')} | {max(walls) - min(walls):.2f} | {more('cpu_start')} "
        f"| {per_step('cpu_steady')} | {more('cpu')} |"
    )
