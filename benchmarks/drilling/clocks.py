"""The clock of the machine is set while a training runs."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.types import Severity

from . import stage
from .patient import STEPS
from .score import Progress, Score, Try, counted, quiet

MEANS = (
    "from one step on the process reads a time of day that is minutes to years earlier or later "
    "(as its own clock says; the machine's cannot be set here); survived when the run comes to its "
    "end with exit code 0, all rows are there, a last checkpoint is good and nothing is found; "
    "silent when a finding or a hang tells of what was not"
)
JUMPS = (-7200.0, 7200.0, -86400.0 * 400, 86400.0 * 400, -130.0, 130.0)


def drill(count: int = 6, *, seed: int = 0, show: Progress = quiet) -> Score:
    """Set the clock in ``count`` runs."""
    score, rng = Score("clock jumps", MEANS), random.Random(seed)
    for number in counted(score.name, range(count), show):
        jump, at = JUMPS[number % len(JUMPS)], rng.randrange(3, 2 * STEPS - 3)
        with tempfile.TemporaryDirectory() as folder:
            score.tries.append(_jump(Path(folder), jump, at, seed))
    return score


def _jump(folder: Path, jump: float, at: int, seed: int) -> Try:
    what = f"by {jump:.0f} s at step {at}"
    stage.write_samples(folder, seed)
    given = ["--hang-after", "60", "--set", "checkpoint.steps=8", "--set", "rollback.cost=1"]
    ended = stage.patient(folder, "--jump", str(jump), "--at", str(at), given=given)
    if ended.code or ended.end is None:
        return Try(what, lost=f"the run ended with {ended.code}: {ended.err[-300:]}")
    try:
        lost = stage.why_not_whole(stage.lane(folder / "run"), 1, ended.last)
        summary = stage.summary(folder)
    except HoldfastError as error:
        return Try(what, lost=str(error))
    if summary.outcome != "finished":
        lost = lost or f"it is told as {summary.ending.line}"
    if stage.damaged(folder / "run" / "checkpoints"):
        lost = lost or "a checkpoint is damaged"
    loud = [one.message for one in summary.findings if one.severity > Severity.INFO]
    return Try(what, lost, silent=f"found: {loud[0]}" if loud else "")
