"""Something happens to one rank of several: none hangs, none differs, the guilty one is named."""

from __future__ import annotations

import itertools
import random
import tempfile
from pathlib import Path

from holdfast.errors import HoldfastError

from . import stage
from .score import Progress, Score, Try, counted, quiet
from .stage import Ended

COMPANY = Path(__file__).with_name("company.py")
MEANS = (
    "two and four gloo ranks under DDP and FSDP2; on one rank a NaN, an exception, SIGKILL, a lock "
    "that is never given back, 60 ms more per step, a dead loader worker, a full disk; on all of "
    "them damaged weights; survived when no rank hangs, ranks that come to their end have the same "
    "weights, and a finding names the rank (for an exception, a hang and, under DDP, a NaN also "
    "the line); silent when none does"
)
# What must come to its end, and what is found; some are found under one code or another.
SURVIVED = ("nan", "spike", "slow", "disk")
FOUND = {
    "nan": ("NUM001", "NUM005"),
    "spike": ("OPT001",),
    "crash": ("RUN001",),
    "kill": ("RUN001", "RUN002", "RNK"),
    "hang": ("RUN004", "RNK"),
    "slow": ("RNK",),
    "worker": ("RUN001", "RUN002", "RUN003"),
    "disk": (),
}
WITH_LINE = ("nan", "crash", "hang")
OPTIONS = ["--hang-after", "6", "--set", "checkpoint.steps=32", "--set", "rollback.every=8"]
OPTIONS += ["--set", "rollback.cost=1"]
# The script's own process group waits a minute for a rank that is gone.
PATIENCE = 180.0


def drill(count: int = 16, *, seed: int = 0, show: Progress = quiet) -> Score:
    """Let ``count`` runs of several ranks meet a fault on one of them."""
    score, rng = Score("ranks", MEANS), random.Random(seed)
    cases = itertools.product((("ddp", 2), ("fsdp", 2), ("ddp", 4)), FOUND)
    for (parallel, world), fault in counted(score.name, itertools.islice(cases, count), show):
        # Rank 0 has no more rights than the others.
        rank, at = rng.randrange(world), rng.randrange(60, 100)
        what = f"{fault} on rank {rank} of {world} at step {at}, {parallel}"
        with tempfile.TemporaryDirectory() as folder:
            options = ["--fault", fault, "--rank", str(rank), "--at", str(at)]
            ended = _company(Path(folder), world, *options, "--parallel", parallel)
            try:
                lost, silent = _judged(Path(folder), ended, fault, rank, world, parallel)
            except HoldfastError as error:
                lost, silent = str(error), ""
            score.tries.append(Try(what, lost, silent))
    return score


def _company(folder: Path, world: int, *options: str) -> Ended:
    words = ["-m", "holdfast", "run", "--run-dir", str(folder / "run"), *OPTIONS]
    words += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    return stage.end(stage.start([*words, str(COMPANY), *options], cwd=folder), PATIENCE)


def _judged(
    folder: Path, ended: Ended, fault: str, rank: int, world: int, parallel: str
) -> tuple[str, str]:
    """What was lost, and what was not told."""
    reported = [line.split()[1:] for line in ended.out.splitlines() if line.startswith("rank ")]
    lost = ""
    if "killed by the drill" in ended.err:
        lost = "a rank hangs"
    elif fault in SURVIVED and (ended.code, len(reported)) != (0, world):
        lost = f"it ended with {ended.code}, {len(reported)} of {world} ranks came to their end"
        errors = [line for line in ended.err.splitlines() if "Error" in line]
        lost += f" ({errors[0].strip()[:200]})" if errors else ""
    elif fault not in SURVIVED and ended.code == 0:
        lost = "it ended with 0"
    elif len({words[2] for words in reported}) > 1:
        lost = "replicas differ"
    with_line = fault in WITH_LINE and not (fault == "nan" and parallel == "fsdp")
    return lost, _untold(folder, fault, rank, with_line)


def _untold(folder: Path, fault: str, rank: int, with_line: bool) -> str:
    """Why nobody knows which rank it was; "" when it is told."""
    summary = stage.summary(folder)
    if fault == "disk":
        data = stage.lane_of(folder / "run", rank)
        failed = [e for e in stage.events(data, "checkpoint") if e.data.get("failed")]
        return "" if failed else "no event tells of a save that failed"
    named = [f for f in summary.findings if f.code.startswith(FOUND[fault])]
    if not named:
        return f"no {' or '.join(FOUND[fault])}, but {[f.code for f in summary.findings]}"
    if fault != "spike" and not any(_names(f.message, f.rank, rank) for f in named):
        return f"rank {rank} is not named: {named[0].message}"
    if with_line and not any(f.line for f in named):
        return f"no line: {named[0].message}"
    return ""


def _names(message: str, of: int, rank: int) -> bool:
    return of == rank or f"rank {rank}" in message
