"""One script of the catalogue under ``holdfast run``: what was recorded, told in facts.

A trial holds what was seen, not whether it was right; see ``_score`` for that. So the answers may
be read again without running anything.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import HoldfastError
from ..judge import Judge
from ..report import summarize
from ..run import LaneData, Run, read_run
from ..types import Finding
from ._catalogue import Case

LIMIT = 240.0
"""Seconds a script may take; on one busy core the longest of ours need about 40."""

# What a launcher, another holdfast or a sandbox may have put into the environment.
_NOT_OURS = ("HOLDFAST", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "TORCHELASTIC")


@dataclass(frozen=True, kw_only=True)
class Said:
    """A finding in short."""

    code: str
    severity: str
    step: int
    file: str = ""
    line: int = 0
    consequence: bool = False

    @classmethod
    def of(cls, finding: Finding, *, follows: bool = False) -> Said:
        """The part of a finding that is compared with an answer; ``follows`` from another one."""
        return cls(
            code=finding.code,
            severity=finding.severity.word,
            step=finding.step,
            file=Path(finding.file).name,
            line=finding.line,
            consequence=follows or bool(finding.evidence.get("consequence")),
        )


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What became of one script."""

    name: str
    exit_code: int
    outcome: str
    """``finished``, ``stopped`` (by holdfast, state saved), ``failed``, ``killed``, ``late``."""
    seconds: float
    """Of the whole process, imports included."""
    steps: int = 0
    said: tuple[Said, ...] = ()
    """Every finding, in the order a report tells them."""
    known: Mapping[str, int] = field(default_factory=dict[str, int])
    """For each code the step at which it was first known; see ``known_steps``."""
    skipped: int = 0
    rollbacks: int = 0
    last_loss: float | None = None
    guard_cost: float | None = None
    """Share of the time between first and last step that was spent in holdfast."""
    errors: tuple[str, ...] = ()
    """Parts of holdfast that failed."""

    def plain(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Trial:
        """Rebuild from a file; keys of later versions are ignored."""
        known = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        known["said"] = tuple(Said(**said) for said in known.get("said", ()))
        known["errors"] = tuple(known.get("errors", ()))
        return cls(**known)


def run_plain(case: Case, limit: float = LIMIT) -> tuple[int | None, float]:
    """The script under python: exit code (None: it took too long) and seconds."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        code = _finish([sys.executable, str(case.path)], folder, limit)
        return code, time.monotonic() - started


def try_case(case: Case, keep: Path | None = None, limit: float = LIMIT) -> Trial:
    """Run a script under holdfast, as a user would, and read what was recorded.

    Args:
        case: what to run; its script is not changed.
        keep: where the run folder shall lie; without it, it is read and removed.
        limit: seconds after which the script is killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = keep or Path(folder) / "run"
        command = [sys.executable, "-m", "holdfast", "run", "--quiet"]
        command += ["--run-dir", str(run)]
        started = time.monotonic()
        code = _finish([*command, str(case.path)], folder, limit)
        seconds = time.monotonic() - started
        return read_trial(case.name, run, -signal.SIGKILL if code is None else code, seconds)


def read_trial(name: str, path: Path, exit_code: int, seconds: float) -> Trial:
    """What a run folder says; a script that never trained leaves none."""
    bare = Trial(
        name=name,
        exit_code=exit_code,
        outcome="finished" if exit_code == 0 else "failed",
        seconds=round(seconds, 2),
    )
    try:
        run = Run.open(path)
        summary = summarize(run)
        lanes = read_run(run)
    except HoldfastError as error:
        return Trial(**{**bare.__dict__, "errors": (str(error),) if path.exists() else ()})
    known: dict[str, int] = {}
    for lane in lanes:
        for code, step in known_steps(lane).items():
            known[code] = min(step, known.get(code, step))
    return Trial(
        name=name,
        exit_code=exit_code,
        outcome="late" if summary.outcome == "unfinished" else summary.outcome,
        seconds=bare.seconds,
        steps=summary.steps,
        said=tuple(
            Said.of(finding, follows=finding is not sighting.finding)
            for sighting in summary.sightings
            for finding in sighting.findings
        ),
        known=known,
        skipped=summary.skipped,
        rollbacks=summary.rollbacks,
        last_loss=_number(summary.last_loss),
        guard_cost=_number(summary.guard_cost),
        errors=summary.errors,
    )


def known_steps(lane: LaneData) -> dict[str, int]:
    """The step after which each code was first known to whoever watched the run.

    The rows are judged again one by one, each together with the events that had been written by
    the time of the next row; a code is known at the first row at which the judge tells it. So an
    exam that took ten steps counts as ten, whatever step its finding is about.
    """
    judge = Judge(rank=lane.rank)
    rows = lane.steps
    waiting = sorted(lane.events, key=lambda event: event.time)
    batches = sorted(lane.batches, key=lambda batch: int(batch.get("step", 0)))
    known: dict[str, int] = {}
    for i in range(len(rows)):
        until = float(rows["time"][i + 1]) if i + 1 < len(rows) else math.inf
        step = int(rows["step"][i])
        due = _taken(waiting, lambda event, until=until: event.time <= until)
        come = _taken(batches, lambda batch, step=step: int(batch.get("step", 0)) <= step)
        for finding in judge.feed(rows[i : i + 1], due, come):
            known.setdefault(finding.code, step)
    for finding in judge.close():
        known.setdefault(finding.code, int(rows["step"][-1]) if len(rows) else finding.step)
    return known


def _taken(queue: list[Any], ready: Any) -> list[Any]:
    """Take what is ready off the front."""
    count = 0
    while count < len(queue) and ready(queue[count]):
        count += 1
    taken = queue[:count]
    del queue[:count]
    return taken


def _number(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _finish(command: Sequence[str], folder: str, limit: float) -> int | None:
    """Run a command to its end; None when it had to be killed, with everything it had started."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_OURS)}
    env |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
