"""The runs of a folder, one row each: how they ended, how far they came, what was found.

A row costs a few small reads, whatever the run recorded; a damaged run is a row that says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ..errors import RunFolderError
from ..records.resuming import Resumed
from ..run import Run, run_folders
from ..run.glance import Glance, glance_at
from ..types import Finding, Severity
from .ending import KINDS, ending_of
from .joined_findings import join_ranks
from .restarts import ends_once
from .summary import steps_done

NO_FINDINGS, INFO_ONLY = "no findings", "info only"
# What a list calls an ending, where that differs from its word.
_STATUS = {"failed": "crashed", "unfinished": "unknown"}
DAMAGED = "damaged"


@dataclass(frozen=True, kw_only=True)
class FoundRun:
    """A run folder before anything but its ``run.json`` was read."""

    name: str
    """Its path from the folder that was listed."""
    path: Path
    run: Run | None
    """None where ``run.json`` cannot be read; ``problem`` then says why."""
    created: float
    """Seconds since 1970; of a damaged run the time its folder last changed."""
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One run of a list."""

    name: str
    path: Path
    created: float
    status: str
    """finished, crashed, killed, stopped, interrupted, running, stalled, unknown or damaged."""
    ending: str = ""
    """The same as a line for people."""
    steps: int = 0
    verdict: str = ""
    """Code of the worst finding, or that there is none; empty for a run that died without one."""
    about: str = ""
    """The name of that finding, which says what it is about."""
    findings: int = 0
    bytes: int = 0
    problem: str = ""
    """Why the run, or a part of it, cannot be read."""


def found_runs(root: str | os.PathLike[str]) -> list[FoundRun]:
    """Every run under ``root`` and in the folders of scans there, newest first."""
    paths = [*run_folders(root), *_in_folders(Path(root))]
    found = [_found(path, str(path.relative_to(root))) for path in paths]
    return sorted(found, key=lambda one: (one.created, one.name), reverse=True)


def read_row(found: FoundRun) -> RunRow:
    """Read what a list says about a run; never raises for what is in its folder."""
    size = size_of(found.path)
    if found.run is None:
        return RunRow(
            name=found.name, path=found.path, created=found.created, status=DAMAGED, bytes=size,
            problem=found.problem,
        )  # fmt: skip
    lanes: list[Glance] = []
    problem = ""
    for lane in found.run.lanes():
        try:
            lanes.append(glance_at(found.run, lane, KINDS))
        except RunFolderError as error:
            problem = problem or str(error)
    events = [event for lane in lanes for event in lane.events]
    ending = ending_of(found.run, events)
    known = [(lane.lane, f) for lane in lanes for f in lane.findings]
    known = ends_once(known, found.run.meta)
    findings = [finding for group in join_ranks(known) for finding in group.findings]
    return RunRow(
        name=found.name,
        path=found.path,
        created=found.created,
        status="stalled" if ending.quiet else _STATUS.get(ending.word, ending.word),
        ending=ending.line,
        steps=_steps(lanes),
        verdict=(verdict := _verdict(findings, died=ending.died)),
        about=next((f.name.replace("_", " ") for f in findings if f.code == verdict), ""),
        findings=len(findings),
        bytes=size,
        problem=problem,
    )


def size_of(path: Path) -> int:
    """The bytes of all files in a folder; links are not followed, files may vanish meanwhile."""
    total = 0
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        total += size_of(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
                except OSError:
                    continue
    except OSError:
        return total
    return total


def _in_folders(root: Path) -> Iterator[Path]:
    """The runs of a scan lie together in a folder that is no run itself."""
    runs = set(run_folders(root))
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        if path not in runs and path.is_dir() and not path.is_symlink():
            try:
                yield from run_folders(path)
            except RunFolderError:  # a foreign folder, which may be closed to us
                continue


def _found(path: Path, name: str) -> FoundRun:
    try:
        run = Run.open(path)
    except RunFolderError as error:
        return FoundRun(name=name, path=path, run=None, created=_changed(path), problem=str(error))
    try:
        created = datetime.fromisoformat(str(run.meta.get("created"))).timestamp()
    except ValueError:
        created = _changed(path)
    return FoundRun(name=name, path=path, run=run, created=created)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # removed meanwhile
        return 0.0


def _steps(lanes: list[Glance]) -> int:
    trained = sorted((lane for lane in lanes if lane.steps), key=lambda lane: lane.began)
    return steps_done(
        (lane.rank, lane.first_step, lane.steps, any(e.kind == Resumed.kind for e in lane.events))
        for lane in trained
    )


def _verdict(findings: list[Finding], *, died: bool) -> str:
    worst = max((finding.severity for finding in findings), default=Severity.INFO)
    if worst > Severity.INFO:
        return findings[0].code  # as in reports, the cause stands before what follows from it
    return "" if died else INFO_ONLY if findings else NO_FINDINGS
