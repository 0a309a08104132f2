"""No memory is left on the host, in each phase of a training."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from holdfast.checkpoint.file import load
from holdfast.errors import HoldfastError

from . import stage
from .patient import SAMPLES, STEPS
from .score import Progress, Score, Try, counted, quiet

MEANS = (
    "64 GiB are asked for under a limit of 32 (ulimit -v), while a sample is read (main process or "
    "worker), in the forward or backward pass, before optimizer.step or in a validation; survived "
    "when the run comes to its end, or ends with the exception and leaves a state of the last "
    "complete step that loads; silent when no finding MEM008 or RUN001 names the line"
)
PHASES = ("data", "forward", "backward", "step", "validation")


def drill(count: int = 10, *, seed: int = 0, show: Progress = quiet) -> Score:
    """Let memory run out in ``count`` runs, in one phase after another."""
    score, rng = Score("out of memory", MEANS), random.Random(seed)
    for number in counted(score.name, range(count), show):
        with tempfile.TemporaryDirectory() as folder:
            score.tries.append(_run_out(Path(folder), PHASES[number % 5], number, rng))
    return score


def _run_out(folder: Path, phase: str, number: int, rng: random.Random) -> Try:
    workers, at = 2 * (number >= 5), rng.randrange(4, STEPS)
    what = f"{phase} at step {at}, {workers} workers"
    stage.write_samples(folder, number)
    where = ["--sample", str(rng.randrange(SAMPLES))] if phase == "data" else ["--at", str(at)]
    ended = stage.patient(folder, "--oom", phase, *where, "--workers", str(workers))
    if ended.code == 0 and ended.end is not None:
        return Try(what)
    try:
        data, summary = stage.lane(folder / "run"), stage.summary(folder)
        lost = stage.why_not_whole(data, 1, ended.last)
        if ended.last > 0:
            states = stage.events(data, "last_state")
            if not states or not states[-1].data.get("file"):
                lost = lost or f"no state was saved: {states[-1].data if states else 'no word'}"
            else:
                saved = int(load(states[-1].data["file"])[1]["steps"])
                lost = lost or ("" if saved == ended.last else f"the state is of step {saved}")
    except HoldfastError as error:
        return Try(what, lost=str(error))
    if ended.code != 1:
        lost = lost or f"it ended with {ended.code}: {ended.err[-300:]}"
    named = [f for f in summary.findings if f.code in ("MEM008", "RUN001") and f.line]
    return Try(what, lost, silent="" if named else f"found: {[f.code for f in summary.findings]}")
