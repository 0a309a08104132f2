"""A window of data at another scale, and weights that were hit: the run ends as if it had not."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from holdfast.errors import HoldfastError

from . import stage
from .score import Progress, Score, Try, counted, quiet

STEPS, WITHIN = 500, 0.05
MEANS = (
    "1 to 8 batches at 30 to 1000 times the scale, or all weights multiplied by -8, at a random "
    f"step, under holdfast run; survived when the held-out loss ends within {WITHIN:.0%} of a run "
    "without it; lost when not; silent when no finding OPT001, OPT002 or OPT003 tells of it"
)


def drill(count: int = 12, *, seed: int = 0, show: Progress = quiet) -> Score:
    """Spike ``count`` runs: poisoned windows and damaged weights in turn."""
    score, rng = Score("spikes", MEANS), random.Random(seed)
    harm: list[float] = []
    for number in counted(score.name, range(count), show):
        at = rng.randrange(40, STEPS - 150)
        options = ["--damage", str(at)]
        if number % 2 == 0:
            scale = 10 ** rng.uniform(1.5, 3.0)
            options = ["--window", f"{at}:{at + rng.randrange(1, 9)}", "--scale", f"{scale:.0f}"]
        # With a rate that decays the end of a run does not hang on its last few batches.
        options += ["--decay", "--steps", str(STEPS), "--seed", str(number)]
        with tempfile.TemporaryDirectory() as folder:
            score.tries.append(_spike(Path(folder), options, harm))
    score.notes.append(
        f"spikes: the held-out loss ended {min(harm):+.1%} to {max(harm):+.1%} off the run without."
    )
    return score


def _spike(folder: Path, options: list[str], harm: list[float]) -> Try:
    what = " ".join(options)
    clean = stage.plainly(folder / "clean", *options, "--clean")
    ended = stage.guarded(folder / "run", *options)
    if ended.code or ended.end is None or clean.end is None:
        return Try(what, lost=f"the run ended with {ended.code}: {ended.err[-300:]}")
    off = ended.end[2] / clean.end[2] - 1
    harm.append(off)
    try:
        data = stage.lane(folder / "run")
    except HoldfastError as error:
        return Try(what, lost=str(error))
    reported = data is not None and any(one.code.startswith("OPT") for one in data.findings)
    lost = "" if off <= WITHIN else f"the loss ended {off:+.0%} off the run without it"
    return Try(what, lost, silent="" if reported else "no finding tells of it")
