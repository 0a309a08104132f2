"""Starts the victim and reads what it has told and what was recorded about it."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from holdfast.checkpoint.record import record_path
from holdfast.checkpoint.store import CheckpointStore, Entry
from holdfast.report.summary import RunSummary, summarize
from holdfast.run import LaneData, LaneReader, Run
from holdfast.types import Event

PATIENT = Path(__file__).with_name("patient.py")
VICTIM = Path(__file__).with_name("victim.py")
# Nothing here takes long; a run that hangs is lost, not waited for.
PATIENCE = 120.0

Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Reported:
    """One step as the victim told it: the digest of its weights and the clock."""

    digest: str
    at: float


@dataclass(frozen=True)
class Ended:
    """How a victim ended and what it said."""

    pid: int
    code: int
    out: str
    err: str

    @property
    def begin(self) -> int:
        """The step it began with; -1 when it did not come so far."""
        found = [line.split()[1] for line in self._lines if line.startswith("begin ")]
        return int(found[0]) if found else -1

    @property
    def steps(self) -> dict[int, Reported]:
        """Every step that was told completely."""
        words = (line.split() for line in self._lines if line.startswith("step "))
        return {int(w[1]): Reported(w[2], float(w[3])) for w in words}

    @property
    def last(self) -> int:
        """The last step it told; -1 when there is none."""
        return max(self.steps, default=-1)

    @property
    def end(self) -> tuple[int, str, float] | None:
        """Steps, digest and held-out loss of one that came to its end."""
        found = [line.split()[1:] for line in self._lines if line.startswith("end ")]
        return (int(found[0][0]), found[0][1], float(found[0][2])) if found else None

    @property
    def _lines(self) -> list[str]:
        return self.out[: self.out.rfind("\n") + 1].splitlines()  # a kill may tear the last one


def environment() -> dict[str, str]:
    """Ours without what a launcher has put in, and one thread per process."""
    ours = ("HOLDFAST", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    return env | {"OMP_NUM_THREADS": "1"}


def start(words: Sequence[str], *, below: Sequence[str] = (), **popen: Any) -> Process:
    """Start python on something, with pipes; ``below`` is a command that starts it in turn."""
    # Unbuffered, so that a line can be read without taking more.
    pipes: dict[str, Any] = {"stdin": -1, "stdout": -1, "stderr": -1, "bufsize": 0}
    command: Any = [*below, sys.executable, *words]
    return cast(Process, subprocess.Popen(command, env=environment(), **{**pipes, **popen}))


def end(process: Process, patience: float = PATIENCE) -> Ended:
    """Wait for the end; a process that does not come to one is killed.

    On a busy machine it gets its turn less often, and is given as much more time.
    """
    patience *= max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
    try:
        out, err = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        err = (err or b"") + f"\nkilled by the drill after {patience:.0f} s".encode()
    return Ended(process.pid, process.returncode, out.decode(), (err or b"").decode())


def watched(run_dir: Path, *options: str, patience: float = PATIENCE, **popen: Any) -> Ended:
    """The victim with ``holdfast.watch``."""
    return end(start([str(VICTIM), str(run_dir), *options], **popen), patience)


def guarded(run_dir: Path, *options: str, settings: Sequence[str] = (), **popen: Any) -> Ended:
    """The victim under ``holdfast run``, without a word of holdfast in it."""
    words = ["-m", "holdfast", "run", "--run-dir", str(run_dir)]
    words += [word for one in settings for word in ("--set", one)]
    return end(start([*words, str(VICTIM), str(run_dir), "--plain", *options], **popen))


def patient(
    folder: Path, *options: str, given: Sequence[str] = (), patience: float = PATIENCE
) -> Ended:
    """The patient on files in a folder, under ``holdfast run``."""
    words = ["-m", "holdfast", "run", "--run-dir", str(folder / "run"), *given]
    return end(start([*words, str(PATIENT), str(folder), *options], cwd=folder), patience)


def write_samples(folder: Path, seed: int, count: int = 256, numbers: int = 6) -> list[Path]:
    """One file of numbers for each sample."""
    rng = random.Random(seed)
    files = [folder / f"{number}.bin" for number in range(count)]
    for file in files:
        file.write_bytes(struct.pack(f"{numbers}f", *(rng.gauss(0, 1) for _ in range(numbers))))
    return files


def summary(folder: Path) -> RunSummary:
    """What the report says of a run."""
    return summarize(Run.open(folder / "run"))


def plainly(run_dir: Path, *options: str) -> Ended:
    """The victim under python alone."""
    return end(start([str(VICTIM), str(run_dir), "--plain", *options]))


def lane(run_dir: Path, pid: int | None = None) -> LaneData | None:
    """What was recorded of one process, or of the first; ``HoldfastError`` if unreadable."""
    run = Run.open(run_dir)
    for name in reversed(run.lanes()) if pid is not None else run.lanes():
        data = LaneReader(run, name).read()
        if pid is None or any(e.data["pid"] == pid for e in data.events if e.kind == "start"):
            return data
    return None


def lane_of(run_dir: Path, rank: int) -> LaneData | None:
    """What was recorded of one rank."""
    run = Run.open(run_dir)
    every = (LaneReader(run, name).read() for name in run.lanes())
    return next((data for data in every if data.rank == rank), None)


def status(run_dir: Path) -> dict[str, Any]:
    """What ``run.json`` says."""
    return Run.open(run_dir).meta


def events(data: LaneData | None, kind: str) -> list[Event]:
    """The events of one kind."""
    return [event for event in data.events if event.kind == kind] if data else []


def why_not_whole(data: LaneData | None, first: int, last: int) -> str:
    """Why the rows of these steps, counted from one, are not all there; "" when they are."""
    if data is None:
        return "" if last < 0 else f"no lane was recorded, {last} steps were told"
    rows = [int(step) + 1 for step in data.steps["step"]] if len(data.steps) else []
    if rows != list(range(first, first + len(rows))):
        return f"rows are missing or out of order after step {first}"
    return "" if last < first or (rows and rows[-1] >= last) else f"no row of step {last}"


def damaged(store: Path) -> list[Entry]:
    """Checkpoints that are not what was written, read to their end.

    One file without the other is none: a save or a removal that was cut short.
    """
    entries = map(Entry.checked, CheckpointStore(store).entries())
    both = [one for one in entries if one.path.exists() and record_path(one.path).exists()]
    return [one for one in both if one.damage]
