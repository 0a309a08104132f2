"""One bit of a checkpoint is turned over: it is refused, and an older good one is used."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import holdfast
from holdfast.checkpoint.file import load, verify
from holdfast.checkpoint.store import FOLDER, CheckpointStore
from holdfast.config import CheckpointSettings, RunSettings, Settings
from holdfast.errors import CheckpointError

from . import stage
from .score import Progress, Score, Try, counted, quiet
from .victim import digest

MEANS = (
    "one bit of the newest checkpoint (data or record, plain or compressed) is flipped; survived "
    "when load and verify refuse it and resume=True goes on from the older one; lost when no "
    "checkpoint is left to go on from; silent when the flip is not noticed or no line tells of it"
)
# How many states a run leaves behind.
SAVED = 3


def drill(count: int = 100, *, seed: int = 0, show: Progress = quiet) -> Score:
    """Flip a bit in ``count`` checkpoints, each in a fresh copy of a run."""
    score, rng = Score("bit flips", MEANS), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        runs = [_trained(Path(folder, "plain"), False), _trained(Path(folder, "packed"), True)]
        for number in counted(score.name, range(count), show):
            packed = number % 2
            run = shutil.copytree(runs[packed], Path(folder, "copy"))
            # Half of the flips in the record: it is small and would hardly ever be hit.
            suffix = ".safetensors" if number % 4 < 2 else ".json"
            score.tries.append(_flip(run, bool(packed), suffix, rng))
            shutil.rmtree(run)
    return score


def _settings(packed: bool) -> Settings:
    return Settings(
        checkpoint=CheckpointSettings(last=SAVED, compress=packed, minutes=0.0),
        run=RunSettings(ring_mib=1, quiet=True),
    )


def _watched(
    run: Path, packed: bool, resume: bool, lines: list[str]
) -> tuple[nn.Module, holdfast.Watch]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    settings = Settings(
        checkpoint=CheckpointSettings(last=SAVED, compress=packed, minutes=0.0),
        run=RunSettings(ring_mib=1, quiet=True),
    )
    watch = holdfast.watch(
        model, optimizer, run_dir=run, resume=resume, settings=settings, say=lines.append
    )
    return model, watch


def _trained(run: Path, packed: bool) -> Path:
    """A run with some checkpoints, one after each step."""
    model, watch = _watched(run, packed, False, [])
    with watch:
        for x in watch([torch.randn(16, 8) for _ in range(SAVED)]):
            watch.run_step(lambda x: (model(x) ** 2).mean(), x)
            path = watch.save()
            assert path is not None
            while not path.with_suffix(".json").exists():
                time.sleep(0.002)
    return run


def _flip(run: Path, packed: bool, suffix: str, rng: random.Random) -> Try:
    """Flip one bit of the newest checkpoint and go on without it."""
    *_, older, newest = CheckpointStore(run / FOLDER).entries()
    path = newest.path.with_suffix(suffix)
    content = bytearray(path.read_bytes())
    bit = rng.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    what = f"bit {bit} of {path.name}{' (compressed)' if packed else ''}"
    silent = ""
    for check in (load, verify):
        try:
            check(newest.path)
            silent = f"{check.__name__} took it"
        except CheckpointError:
            pass
    lines: list[str] = []
    try:
        model, watch = _watched(run, packed, True, lines)
    except CheckpointError as error:
        return Try(what, lost=f"no resume: {error}", silent=silent)
    with watch:
        started = {name: value.clone() for name, value in model.state_dict().items()}
        for x in watch([torch.randn(16, 8) for _ in range(SAVED)]):
            watch.run_step(lambda x: (model(x) ** 2).mean(), x)
    if not any(newest.path.stem in line and "damaged" in line for line in lines):
        silent = silent or f"no line tells of it: {lines}"
    tree, _ = load(older.path)
    if digest(started) != digest(tree["models"]["model"]):
        return Try(what, lost="not the state of the older one", silent=silent)
    reported = stage.events(stage.lane(run, pid=os.getpid()), "resume")
    if [event.data["file"] for event in reported] != [str(older.path)]:
        silent = silent or "no event tells what was resumed from"
    return Try(what, silent=silent)
