"""Whether a run goes on: what ``run.json`` says, and where it says nothing, who is still there.

A run that was killed never says so, and neither does one whose supervisor was killed before it.
The processes are asked instead: the supervisor, which ``run.json`` names, and the training
processes, which their rings name.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import Literal

import psutil

from holdfast.errors import RunFolderError
from holdfast.run.folder import Run
from holdfast.run.process import ProcessMark
from holdfast.run.ring import Ring

PROCESS = "process"
"""The key of ``run.json`` under which the process that made the run describes itself."""

State = Literal["ended", "running", "closed", "killed", "unknown"]
"""``ended``: run.json says how. ``closed``: the training ended in order, run.json does not say so.
``killed``: nobody is left, and the training did not end in order. ``unknown``: on another machine,
or recorded by a version that did not name its processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Whether a run goes on, by whom, and for how long nothing of it was written."""

    state: State
    pid: int = 0
    """The process that was found, of a run that goes on."""
    host: str = ""
    """Where it was recorded, as far as that is known."""
    silence: float = 0.0
    """Seconds since a file of the record last changed."""
    orphaned: bool = False
    """Whether the training goes on although its supervisor was killed."""


def life_of(run: Run) -> Life:
    """Look whether a run goes on; a damaged ring counts as one that was left open."""
    made = ProcessMark.from_dict(run.meta.get(PROCESS))
    host = "" if made is None else made.host
    if run.meta.get("status") != "running":
        return Life(state="ended", host=host)
    silence = _silence(run)
    lanes = run.lanes()
    rings = [_Ring.of(run, lane) for lane in lanes if run.ring_path(lane).exists()]
    training = next((ring.pid for ring in rings if ring.alive), 0)
    supervisor = made.is_alive() if made is not None else None
    if training or supervisor:
        pid = training or (made.pid if made is not None else 0)
        orphaned = bool(training) and supervisor is False
        return Life(state="running", pid=pid, host=host, silence=silence, orphaned=orphaned)
    known = [ring.alive for ring in rings if ring.pid] + ([] if made is None else [supervisor])
    state: State = "closed"
    if not known or None in known:
        state = "unknown"
    elif not lanes or not all(ring.closed for ring in rings):
        state = "killed"
    return Life(state=state, host=host, silence=silence)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ring:
    """What a ring tells of its writer; ``pid`` is 0 where it tells nothing."""

    pid: int = 0
    alive: bool | None = None
    closed: bool = False

    @classmethod
    def of(cls, run: Run, lane: str) -> _Ring:
        try:
            # An empty file is a lane that was claimed and has no ring yet.
            ring = Ring.attach(run.ring_path(lane), readonly=True)
        except RunFolderError:
            return cls()
        try:
            mark, pid = ring.process, ring.pid
            alive = mark.is_alive() if mark is not None else psutil.pid_exists(pid)
            return cls(pid=pid, alive=alive, closed=ring.closed)
        finally:
            ring.detach()


def _silence(run: Run) -> float:
    newest = 0.0
    with contextlib.suppress(OSError):
        for entry in os.scandir(run.path):
            with contextlib.suppress(OSError):
                newest = max(newest, entry.stat(follow_symlinks=False).st_mtime)
    return max(0.0, time.time() - newest)
