"""Files of the training data that cannot be read."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from holdfast.errors import HoldfastError

from . import stage
from .patient import SAMPLES, STEPS
from .score import Progress, Score, Try, counted, quiet

MEANS = (
    "up to three files of the training data are cut off, empty or gone, read by the main process "
    "or by two workers, for two epochs; survived when the run comes to its end, exactly these "
    "samples are replaced and RUN003 and the quarantine name each; with five, more than may be "
    "replaced, survived when the run ends with the exception, RUN001 and a saved state; silent "
    "when a sample is not named"
)
WAYS = ("cut off", "empty", "gone")
_ALLOWED = 3


def drill(count: int = 8, *, seed: int = 0, show: Progress = quiet) -> Score:
    """Spoil files of ``count`` runs; of every fourth too many."""
    score, rng = Score("bad samples", MEANS), random.Random(seed)
    for number in counted(score.name, range(count), show):
        bad = rng.sample(range(SAMPLES), 5 if number % 4 == 3 else rng.randrange(1, 4))
        with tempfile.TemporaryDirectory() as folder:
            score.tries.append(_spoil(Path(folder), bad, number, seed))
    return score


def _spoil(folder: Path, bad: list[int], number: int, seed: int) -> Try:
    workers = 2 * (number % 2)
    what = f"{len(bad)} samples, {workers} workers"
    files = stage.write_samples(folder, seed)
    for place, index in enumerate(bad):
        match WAYS[(number + place) % len(WAYS)]:
            case "cut off":
                files[index].write_bytes(files[index].read_bytes()[:9])
            case "empty":
                files[index].write_bytes(b"")
            case _:
                files[index].unlink()
    ended = stage.patient(folder, "--workers", str(workers), "--seed", str(number))
    try:
        data, summary = stage.lane(folder / "run"), stage.summary(folder)
    except HoldfastError as error:
        return Try(what, lost=str(error))
    replaced = {e.data["index"] for e in stage.events(data, "unreadable") if e.data["replaced"]}
    named = {one.code for one in summary.findings}
    if len(bad) > _ALLOWED:
        if ended.code != 1 or len(replaced) != _ALLOWED:
            return Try(what, lost=f"it ended with {ended.code}, {len(replaced)} were replaced")
        saved = summary.saved_state is not None and summary.saved_state.path
        lost = "" if saved or ended.last < 1 else "no state was saved"
        return Try(what, lost, silent="" if {"RUN001", "RUN003"} <= named else f"only {named}")
    if ended.code or ended.end is None or ended.end[0] != 2 * STEPS:
        return Try(what, lost=f"the run ended with {ended.code}: {ended.err[-300:]}")
    if not replaced <= set(bad):
        return Try(what, lost=f"{sorted(replaced)} were replaced, {sorted(bad)} cannot be read")
    whole = replaced == set(bad) and "RUN003" in named
    return Try(what, silent="" if whole else f"{sorted(replaced)} of {sorted(bad)} are named")
