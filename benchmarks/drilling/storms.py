"""Long rows of poisoned steps: left out exactly, and an end when the budget is spent."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from holdfast.checkpoint.file import load
from holdfast.checkpoint.tree import flatten
from holdfast.errors import HoldfastError
from holdfast.records.nonfinite import BatchReplay
from holdfast.types import Severity

from . import stage
from .score import Progress, Score, Try, counted, quiet

MEANS = (
    "up to 600 steps in a row with NaN in a batch, an infinite loss or infinite gradients, under "
    "holdfast run; survived when exactly these steps are left out and the weights end bit for bit "
    "as if they had never been, or, with a low budget, when the run stops right after it with a "
    "saved state that loads and is finite; silent when no finding names the fault or no event "
    "tells of the stop"
)
CODES = {"loss": "NUM001", "input": "NUM005", "grad": "NUM002"}


def drill(count: int = 12, *, seed: int = 0, show: Progress = quiet) -> Score:
    """Let ``count`` runs go through storms; every third with a budget that does not suffice."""
    score, rng = Score("NaN storms", MEANS), random.Random(seed)
    kinds = list(CODES)
    for number in counted(score.name, range(count), show):
        kind = kinds[(number // 3 + seed) % 3]
        with tempfile.TemporaryDirectory() as folder:
            if number % 3 == 2:
                score.tries.append(_stopped(Path(folder), kind, rng))
            else:
                score.tries.append(_weathered(Path(folder), kind, rng))
    return score


def _weathered(folder: Path, kind: str, rng: random.Random) -> Try:
    first, second = rng.randrange(0, 60), rng.randrange(100, 600)
    gap = rng.randrange(1, 20)
    spans = [(first, first + second), (first + second + gap, first + second + gap + 40)]
    steps = spans[-1][1] + 60
    options = ["--steps", str(steps), "--poison", kind]
    options += [word for a, b in spans for word in ("--bad", f"{a}:{b}")]
    what = f"{kind}, {' '.join(options)}"
    ended = stage.guarded(folder / "run", *options)
    calm = stage.guarded(folder / "calm", *options, "--clean")
    if ended.code or ended.end is None or calm.end is None:
        return Try(what, lost=f"the run ended with {ended.code}: {ended.err[-300:]}")
    try:
        data = stage.lane(folder / "run")
    except HoldfastError as error:
        return Try(what, lost=str(error))
    assert data is not None
    skipped = int((data.steps["skipped"] > 0).sum())
    events = stage.events(data, BatchReplay.kind)
    again = sum(one.batches for one in map(BatchReplay.of, events) if one is not None)
    poisoned = sum(b - a for a, b in spans)
    lost = ""
    if skipped != poisoned + again:
        lost = f"{skipped} steps were left out, {poisoned} were poisoned, {again} handed out twice"
    elif ended.end[1] != calm.end[1]:
        lost = "the weights are not those of a run without the storm"
    reported = any(
        one.code == CODES[kind] and one.severity > Severity.INFO for one in data.findings
    )
    return Try(what, lost, silent="" if reported else f"no finding {CODES[kind]}")


def _stopped(folder: Path, kind: str, rng: random.Random) -> Try:
    budget, start = rng.randrange(5, 60), rng.randrange(30, 80)
    options = ["--steps", str(start + 200), "--poison", kind, "--bad", f"{start}:{start + 150}"]
    what = f"{kind}, budget {budget}, {' '.join(options)}"
    run_dir = folder / "run"
    ended = stage.guarded(
        run_dir, *options, settings=[f"policy.{CODES[kind]}.budget={budget}", "rollback.every=4"]
    )
    if ended.code != 3 or ended.end is not None:
        return Try(what, lost=f"no stop: the run ended with {ended.code}: {ended.err[-300:]}")
    try:
        data = stage.lane(run_dir)
        stops = stage.events(data, "stop")
        if len(stops) != 1 or "holdfast: stopped" not in ended.err:
            return Try(what, silent=f"{len(stops)} events tell of the stop: {ended.err[-300:]}")
        tree, record = load(stops[0].data["checkpoint"])
    except HoldfastError as error:
        return Try(what, lost=str(error))
    made = ended.last
    events = stage.events(data, BatchReplay.kind)
    again = sum(one.batches for one in map(BatchReplay.of, events) if one is not None)
    lost = ""
    if not budget <= made - start <= budget + 2 + again:
        lost = f"stopped after {made - start} bad steps"
    elif not all(bool(t.isfinite().all()) for t in flatten(tree)[1] if t.is_floating_point()):
        lost = "the saved state is not finite"
    elif int(record["step"]) > made:
        lost = f"the saved state is of step {record['step']}"
    return Try(what, lost=lost)
