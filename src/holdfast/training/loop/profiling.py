"""A window of ``torch.profiler`` in the middle of a run, written into the run folder.

``trace.json`` is for https://ui.perfetto.dev, ``profile.txt`` is the table of what took longest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from ...config import Section, bounded
from .. import channels

TRACE, TABLE = "trace.json", "profile.txt"
# A browser opens a larger one slowly, packed or not; on disk it need not take all that place.
_LARGE = 16 * 2**20
_ROWS = 40
_NAMED = 5  # of the rows of the table, on the channel
_profiling = channels.get("profiling")
# Steps of the window where only the channel asks for one.
_USUAL = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileSettings(Section):
    """Which steps are profiled and what is noted of them."""

    start: int = bounded(10, 1)  # steps before the window: the first ones are not like the rest
    steps: int = bounded(0, 0)  # steps in the window; 0: none are profiled
    memory: bool = False  # every allocation
    shapes: bool = False  # shapes of the inputs of every operator


def wanted(settings: ProfileSettings) -> ProfileSettings:
    """As it was set; where no window was, the channel ``profiling`` asks for a short one."""
    if settings.steps or not _profiling.on:
        return settings
    return dataclasses.replace(settings, steps=_USUAL)


class Profiler:
    """Profiles one window of steps; a profiler that fails is told and never ends the run.

    Args:
        settings: which steps.
        folder: where the files go, asked when the window begins; None: nothing is profiled, as on
            ranks that write nothing.
        say: called with where the files are.
    """

    def __init__(
        self,
        settings: ProfileSettings,
        folder: Callable[[], Path | None],
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._say = say or (lambda line: None)
        self._steps = self._began = 0
        self._off = settings.steps == 0
        self._where: Path | None = None
        self._profile: profile | None = None

    def step(self) -> None:
        """A step has ended."""
        if self._off:
            return
        self._steps += 1
        if self._profile is not None:
            done = self._steps - self._began
            if done < self._settings.steps:
                self._profile.step()
            else:
                self._finish()
        elif self._steps >= self._settings.start:
            self._begin()

    def close(self) -> None:
        """The run ends; what was seen of the window so far is written."""
        if self._profile is not None:
            self._finish()
        self._off = True

    def _begin(self) -> None:
        self._where, self._began = self._folder(), self._steps
        if self._where is None:
            self._off = True
            return
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            activities.append(ProfilerActivity.CUDA)
        with self._failing_softly():
            # Without a schedule: it is begun and ended by hand, so that a run may end anywhere.
            started = profile(
                activities=activities,
                profile_memory=self._settings.memory,
                record_shapes=self._settings.shapes,
            )
            started.start()
            self._profile = started

    def _finish(self) -> None:
        ended, where, self._profile = self._profile, self._where, None
        self._off = True
        if ended is None or where is None:
            return
        with self._failing_softly():
            ended.stop()
            trace = _write_trace(ended, where)
            order = "self_device_time_total" if _on_device(ended) else "self_cpu_time_total"
            table = ended.key_averages().table(sort_by=order, row_limit=_ROWS)
            _write(where / TABLE, lambda path: path.write_text(table, encoding="utf-8"))
            first, last = self._began + 1, self._began + self._seen()
            _profiling(_kernels_reported, ended, first, last)
            self._say(f"profile of steps {first} to {last}: {trace} and {where / TABLE}")

    def _seen(self) -> int:
        return max(1, min(self._steps - self._began, self._settings.steps))

    @contextlib.contextmanager
    def _failing_softly(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # another profiler is on, or the disk is full
            self._off = True
            self._say(f"no profile: {type(error).__name__}: {str(error).strip()[:200]}")


def _kernels_reported(ended: profile, first: int, last: int) -> str:
    """What took longest, for the channel."""
    where = "self_device_time_total" if _on_device(ended) else "self_cpu_time_total"
    rows = sorted(ended.key_averages(), key=lambda row: -getattr(row, where))
    whole = sum(getattr(row, where) for row in rows) or 1.0
    listed = [
        f"{row.key} {getattr(row, where) / 1e3:.2f} ms ({getattr(row, where) / whole:.0%})"
        for row in rows[:_NAMED]
    ]
    return f"steps {first} to {last}: {', '.join(listed)}"


def _on_device(ended: profile) -> bool:
    return ProfilerActivity.CUDA in ended.activities


def _write_trace(ended: profile, where: Path) -> Path:
    path = where / TRACE
    _write(path, lambda part: ended.export_chrome_trace(str(part)))
    packed = path.with_name(f"{TRACE}.gz")
    if path.stat().st_size <= _LARGE:
        packed.unlink(missing_ok=True)  # of an earlier window in this folder
        return path
    _write(packed, lambda part: _pack(path, part))
    path.unlink()
    return packed


def _pack(path: Path, part: Path) -> None:
    with path.open("rb") as plain, gzip.open(part, "wb", compresslevel=4) as packed:
        shutil.copyfileobj(plain, packed)


def _write(path: Path, write: Callable[[Path], object]) -> None:
    """Whole or not at all: a reader never sees half a file."""
    # The ending stays: by it the profiler decides how to write.
    part = path.with_name(f".part-{path.name}")
    try:
        write(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
