"""kill -9 at random instants: one run, killed again and again, goes on each time."""

from __future__ import annotations

import random
import re
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.checkpoint.file import load
from holdfast.checkpoint.store import FOLDER, CheckpointStore
from holdfast.errors import HoldfastError
from holdfast.run import LaneData

from . import stage
from .score import Progress, Score, Try, counted, quiet
from .stage import Ended, Process, Reported
from .victim import digest

MEANS = (
    "killed with SIGKILL while it starts, steps or saves; survived when the newest good checkpoint "
    "loads, holds the weights told at its step and is at most one interval old (two when the next "
    "is due; more only while it is being written), the rows of all steps told are there, and the "
    "next process goes on from it with the same digests; lost when not; silent when a resume that "
    "differs calls itself exact"
)
EVERY = 40
# How long a victim lives after it was let go, at most: opening, resuming, some saves.
LIFE = 0.5
# For the undisturbed run, which makes all steps in one life.
PATIENCE = 600.0
_HALF = re.compile(r"step-\d+\.r0\.(?:2\.)?(?:safetensors|json)\.(\d+)\.")


@dataclass
class Story:
    """What is known of the run: the weights at every step, and what must be gone on from."""

    run_dir: Path
    known: dict[int, Reported] = field(default_factory=dict[int, Reported])
    newest: int = 0
    oldest: int = 0
    in_mid_save: int = 0


def drill(count: int = 200, *, seed: int = 0, show: Progress = quiet) -> Score:
    """Kill one run ``count`` times, then let it end and compare it with an undisturbed one."""
    score, rng = Score("kill -9", MEANS), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder) / "run")
        warm = _start(story.run_dir)
        for number in counted(score.name, range(count), show):
            # The next one imports torch meanwhile and waits to be let go.
            process, warm = warm, _start(story.run_dir)
            ended, at = _killed(process, rng.uniform(0.0, LIFE))
            score.tries.append(_judged(f"kill {number + 1}", story, ended, at))
        last = max(story.known, default=0) + 2 * EVERY
        stage.end(_signalled(warm))
        score.tries[-1] = _ending(score.tries[-1], story, last)
    score.notes.append(
        f"kill -9: {story.in_mid_save} of {count} in the middle of a save. With a checkpoint every "
        f"{EVERY} steps the newest was at most {story.oldest} steps old. {last} steps in all, at "
        "their end compared bit for bit with those of an undisturbed run."
    )
    return score


def _start(run_dir: Path) -> Process:
    return stage.start([str(stage.VICTIM), str(run_dir), "--every", str(EVERY), "--ready"])


def _signalled(process: Process) -> Process:
    process.send_signal(signal.SIGKILL)
    return process


def _killed(process: Process, after: float) -> tuple[Ended, float]:
    """Let a victim go and kill it; what it told, and when it was killed."""
    assert process.stdin is not None and process.stdout is not None
    process.stdout.readline()
    process.stdin.write(b"go\n")
    time.sleep(after)
    at = time.monotonic()
    return stage.end(_signalled(process)), at


def _judged(what: str, story: Story, ended: Ended, at: float) -> Try:
    """Everything that must be true after a kill."""
    what = f"{what}, after step {ended.last}"
    if ended.code != -signal.SIGKILL:
        return Try(what, lost=f"it ended by itself: {ended.err[-300:]}")
    try:
        data = stage.lane(story.run_dir, ended.pid) if ended.steps else None
        wrong = stage.why_not_whole(data, ended.begin + 1, ended.last)
        silent = _resumed_wrongly(story, ended, data)
        wrong = wrong or _checkpoint_wrong(story, ended, at)
    except HoldfastError as error:
        return Try(what, lost=str(error))
    return Try(what, lost=wrong or silent, silent=silent)


def _resumed_wrongly(story: Story, ended: Ended, data: LaneData | None) -> str:
    """Why it did not go on as the run did before it; "" when it did."""
    wrong = ""
    if ended.begin not in (-1, story.newest):
        wrong = f"it began with step {ended.begin} and not with {story.newest}"
    for step, reported in ended.steps.items():
        known = story.known.setdefault(step, reported)
        if not wrong and known.digest != reported.digest:
            wrong = f"other weights at step {step} than before the kill"
    if not wrong and ended.begin > 0 and ended.steps and not stage.events(data, "resume"):
        wrong = "no event tells of the resume"
    exact = [event.data["exact"] for event in stage.events(data, "resume")]
    return "" if exact == [False] else wrong


def _checkpoint_wrong(story: Story, ended: Ended, at: float) -> str:
    """Why the newest good checkpoint is not what it must be; "" when it is."""
    store = story.run_dir / FOLDER
    half = store.is_dir() and any(
        match and int(match[1]) == ended.pid
        for match in (_HALF.match(path.name) for path in store.iterdir())
    )
    story.in_mid_save += half
    entry = CheckpointStore(store).latest()
    step = 0 if entry is None else entry.step
    if step < story.newest:
        return f"the newest good checkpoint is of step {step}, it was of {story.newest} before"
    story.newest = step
    if entry is not None:
        tree, _ = load(entry.path)
        weights = digest(tree["models"]["model"])
        # The step of a save is told after it: a kill may come between the two.
        if weights != story.known.setdefault(step, Reported(weights, at)).digest:
            return f"the checkpoint of step {step} holds other weights than the run had"
    age = ended.last - step
    story.oldest = max(story.oldest, age)
    # One that is due may have been handed over and have left nothing in the folder yet: the thread
    # that saves gives way to everybody, and steps take a millisecond here.
    if age > 2 * EVERY and not half:
        return f"the newest checkpoint is {age} steps old"
    return ""


def _ending(judged: Try, story: Story, last: int) -> Try:
    """Let the run come to its end, beside one that nobody has touched."""
    options = ["--every", str(EVERY), "--steps", str(last)]
    ended = stage.watched(story.run_dir, *options)
    whole = stage.watched(story.run_dir.with_name("whole"), *options, patience=PATIENCE)
    wrong = ""
    if ended.code or ended.end is None or whole.end is None:
        wrong = f"it did not come to its end: {(ended.err or whole.err)[-300:]}"
    elif ended.end != whole.end:
        wrong = "its end is not that of an undisturbed run"
    elif ended.begin != story.newest:
        wrong = f"it began with step {ended.begin} and not with {story.newest}"
    elif bad := stage.damaged(story.run_dir / FOLDER):
        wrong = f"{bad[0].path.name} is damaged: {bad[0].damage}"
    elif left := list((story.run_dir / FOLDER).glob("*.tmp")):
        wrong = f"{left[0].name} was left behind"
    return Try(judged.what, judged.lost or wrong, judged.silent or wrong) if wrong else judged
