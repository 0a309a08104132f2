"""A worker of the DataLoader dies: the script's own exception, last words, a good checkpoint."""

from __future__ import annotations

import itertools
import random
import tempfile
from pathlib import Path

from holdfast.checkpoint.file import load
from holdfast.checkpoint.store import FOLDER, CheckpointStore
from holdfast.errors import HoldfastError

from . import stage
from .score import Progress, Score, Try, counted, quiet
from .stage import Ended
from .victim import BATCH, SAMPLES

MEANS = (
    "a loader worker leaves with an exit code or is killed while it loads a sample; survived when "
    "the script ends with exit code 1 and the exception torch raises, all rows and the last words "
    "are there, the last good checkpoint loads and (watched) a resume comes to the end; "
    "silent when the run is recorded as if nothing had been"
)
EVERY, EPOCH = 6, SAMPLES // BATCH
# Steps take a millisecond here: some more are made while a state is being written, and a guarded
# run saves its newest snapshot, which has an age of its own.
AGE = 4 * EVERY
# Which of the two is a race within torch.
TORCH_SAYS = ("DataLoader worker (pid", "ConnectionResetError")
SETTINGS = [f"checkpoint.steps={EVERY}", "rollback.every=4", "rollback.cost=1"]


def drill(count: int = 12, *, seed: int = 0, show: Progress = quiet) -> Score:
    """Let a worker die in ``count`` runs, watched and guarded in turn."""
    score, rng = Score("dead worker", MEANS), random.Random(seed)
    ways = itertools.cycle(itertools.product(("1", "kill", "0"), (True, False)))
    for how, watched in counted(score.name, itertools.islice(ways, count), show):
        # Which batch it is in is up to the shuffling.
        deadly = ["--deadly", str(rng.randrange(SAMPLES)), "--how", how]
        what = f"{'watched' if watched else 'guarded'}, {' '.join(deadly)}"
        with tempfile.TemporaryDirectory() as folder:
            score.tries.append(_die(what, Path(folder), deadly, watched))
    return score


def _die(what: str, folder: Path, deadly: list[str], watched: bool) -> Try:
    options = ["--steps", str(2 * EPOCH), "--workers", "2", "--every", str(EVERY)]
    run_dir = folder / "run"
    if watched:
        ended = stage.watched(run_dir, *options, *deadly)
    else:
        ended = stage.guarded(run_dir, *options, *deadly, settings=SETTINGS)
    if ended.code != 1 or not any(word in ended.err for word in TORCH_SAYS):
        return Try(what, lost=f"not the script's own exception: {ended.code} {ended.err[-300:]}")
    try:
        lost, silent = _traces(run_dir, ended)
    except HoldfastError as error:
        return Try(what, lost=str(error))
    if watched and not lost:
        again = stage.watched(run_dir, *options)
        if again.code or again.end is None or again.end[0] != 2 * EPOCH:
            lost = f"the resume ended with {again.code}: {again.err[-300:]}"
        elif again.begin < ended.last - AGE:
            lost = f"the resume began with step {again.begin}, {ended.last} had been made"
    return Try(what, lost, silent)


def _traces(run_dir: Path, ended: Ended) -> tuple[str, str]:
    """What is lost and what was not told, from what was left behind."""
    data = stage.lane(run_dir)
    lost = stage.why_not_whole(data, 1, ended.last)
    entry = CheckpointStore(run_dir / FOLDER).latest()
    if entry is None:
        lost = lost or ("no checkpoint" if ended.last > AGE else "")
    else:
        load(entry.path)
        if ended.last - entry.step > AGE:
            lost = lost or f"the newest checkpoint is {ended.last - entry.step} steps old"
    silent = "" if ended.last < 0 or stage.events(data, "end") else "no last words"
    if data is not None and stage.status(run_dir).get("exit_code") == 0:
        silent = silent or "run.json says that it finished with exit code 0"
    return lost, silent
