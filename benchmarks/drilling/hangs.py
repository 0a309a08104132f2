"""A process of a training stands still: told with line and sample; ended and started again."""

from __future__ import annotations

import itertools
import random
import tempfile
from pathlib import Path

import psutil

from holdfast.errors import HoldfastError
from holdfast.report.restarts import restarts_of

from . import stage
from .patient import SAMPLES, STEPS
from .score import Progress, Score, Try, counted, quiet

MEANS = (
    "the main process or a loader worker stands still for 14 s (a lock, a sleep, a pipe, native "
    "code), with --hang-after 3; survived when RUN004 names the line of stand_still's caller or "
    "itself, for a worker also the batch with the sample, and the run comes to its end; with "
    "--restart survived when the process and its workers are ended, the batch that hung twice is "
    "skipped and named and the run finishes; after a SIGKILL survived when it ends with the very "
    "loss of a run without; a busy validation of 8 s must not be called a hang; silent when "
    "nothing is told"
)
HOWS = ("lock", "native", "sleep", "pipe")
GIVEN = ["--hang-after", "3"]
RESTART = ["--restart", "4", "--set", "restart.grace=3", "--set", "checkpoint.steps=2"]
RESTART += ["--set", "rollback.every=1", "--set", "rollback.cost=1"]
# Each process imports torch anew.
LONG = 400.0


def drill(count: int = 12, *, seed: int = 0, show: Progress = quiet) -> Score:
    """Let ``count`` runs hang, in a worker or the main process; some are restarted, one is busy."""
    score, rng = Score("hang", MEANS), random.Random(seed)
    ways = itertools.cycle((_in_worker, _in_main, _restarted, _killed, _in_main, _busy))
    for number, way in counted(score.name, enumerate(itertools.islice(ways, count)), show):
        with tempfile.TemporaryDirectory() as folder:
            stage.write_samples(Path(folder), seed)
            try:
                score.tries.append(way(Path(folder), HOWS[number % 4], rng))
            except HoldfastError as error:
                score.tries.append(Try(way.__name__, lost=str(error)))
    return score


def _in_worker(folder: Path, how: str, rng: random.Random) -> Try:
    sample = rng.randrange(SAMPLES)
    what = f"worker, {how}, sample {sample}"
    ended = stage.patient(
        folder, "--hang", how, "--sample", str(sample), "--workers", "1", "--epochs", "1",
        given=GIVEN, patience=LONG,
    )  # fmt: skip
    lost = _why_not_finished(ended, STEPS)
    found = _found(folder)
    if found is None:
        return Try(what, lost, silent="no RUN004")
    if found.line == 0 or sample not in found.evidence["samples"]:
        return Try(what, lost, silent=f"not its sample: {found.message}")
    return Try(what, lost)


def _in_main(folder: Path, how: str, rng: random.Random) -> Try:
    at = rng.randrange(3, STEPS)
    what = f"main process, {how}, step {at}"
    where = ["--at", str(at), "--epochs", "1"]
    ended = stage.patient(folder, "--hang", how, *where, given=GIVEN, patience=LONG)
    found = _found(folder)
    silent = "" if found is not None and found.line else "no RUN004 with a line"
    return Try(what, _why_not_finished(ended, STEPS), silent)


def _restarted(folder: Path, how: str, rng: random.Random) -> Try:
    """A worker that hangs on one sample: its batch is skipped the second time."""
    sample = rng.randrange(SAMPLES)
    what = f"restarted, worker, {how}, sample {sample}"
    ended = stage.patient(
        folder, "--hang", how, "--sample", str(sample), "--workers", "1", "--slow", "0.1",
        "--epochs", "1", given=[*GIVEN, *RESTART], patience=LONG,
    )  # fmt: skip
    reported = restarts_of(stage.status(folder / "run"))
    if ended.last < 3 and "not started again" in ended.err:
        return Try(f"{what}, before the first checkpoint")
    if not reported or "hung" not in reported[0]["reason"]:
        return Try(what, silent=f"restarts: {reported} {ended.err[-300:]}")
    left = [p.pid for p in psutil.process_iter() if _works_on(p, folder)]
    lost = f"processes {left} are left" if left else ""
    if ended.code or ended.end is None:
        lost = lost or f"it ended with {ended.code}: {ended.err[-300:]}"
    skipped = any(sample in one["skips"] for one in reported)
    return Try(what, lost, silent="" if skipped else f"its batch is not named: {reported}")


def _killed(folder: Path, how: str, rng: random.Random) -> Try:
    at = rng.randrange(8, STEPS)
    what = f"restarted after SIGKILL at step {at}"
    options = ["--at", str(at), "--slow", "0.1", "--epochs", "1"]
    ended = stage.patient(folder, "--die", *options, given=RESTART, patience=LONG)
    reported = restarts_of(stage.status(folder / "run"))
    silent = (
        "" if reported and "SIGKILL" in reported[0]["reason"] else f"{reported} {ended.err[-300:]}"
    )
    (folder / "run").rename(folder / "killed")
    calm = stage.patient(folder, *options)  # what made it die is not made again
    lost = "" if ended.code == 0 else f"it ended with {ended.code}"
    if ended.end != calm.end:
        lost = lost or f"it ended with {ended.end}, {calm.end} without the kill"
    return Try(what, lost, silent)


def _busy(folder: Path, how: str, rng: random.Random) -> Try:
    ended = stage.patient(folder, "--pause", "8", "--epochs", "2", given=GIVEN, patience=LONG)
    found = _found(folder)
    silent = "" if found is None else f"a validation is called a hang: {found.message}"
    return Try("busy, a validation of 8 s", _why_not_finished(ended, 2 * STEPS), silent)


def _why_not_finished(ended: stage.Ended, steps: int) -> str:
    if ended.code or ended.end is None:
        return f"the run ended with {ended.code}: {ended.err[-300:]}"
    return "" if ended.end[0] == steps else f"{ended.end[0]} of {steps} steps were made"


def _found(folder: Path):
    return next((f for f in stage.summary(folder).findings if f.code == "RUN004"), None)


def _works_on(process: psutil.Process, folder: Path) -> bool:
    try:
        return str(folder) in " ".join(process.cmdline())
    except psutil.Error:
        return False
