"""``holdfast train`` as a user runs it: killed and resumed, on two ranks, with a bad sample."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.checkpoint.file import load
from holdfast.checkpoint.store import CheckpointStore
from holdfast.run import LaneReader, Run

PATIENCE = 100

# Dropout, running statistics, an average, a schedule, windows that do not divide an epoch.
RECIPE = """
import dataclasses, math, os, time
import torch
from torch import nn
from holdfast import Section
from holdfast.training import Place, Recipe, Task, TrainSettings

@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(Section):
    poisoned: int | None = None
    noisy: bool = False
    pause: float = 0.0
    fits: int | None = None
    train: TrainSettings = TrainSettings(epochs=3)

def build(settings, place):
    x = torch.randn(66, 6, generator=torch.Generator().manual_seed(3))
    y = x.sum(1, keepdim=True).sin()
    if settings.poisoned is not None:
        x[settings.poisoned] = math.nan
    noise = [nn.BatchNorm1d(24), nn.Dropout(0.2)] if settings.noisy else []
    def loss(model, batch):
        time.sleep(settings.pause)
        # The last rank has less memory than the others.
        short = settings.fits is not None and place.rank == place.world - 1 and model.training
        if short and len(batch[0]) > settings.fits:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return nn.functional.mse_loss(model(batch[0]), batch[1])
    def stepped(step):
        print("step", step, flush=True)
    return Task(
        model=nn.Sequential(nn.Linear(6, 24), *noise, nn.Tanh(), nn.Linear(24, 1)),
        loss=loss, train=torch.utils.data.TensorDataset(x, y),
        validation=torch.utils.data.TensorDataset(x[:20], y[:20]), stepped=stepped,
    )

RECIPE = Recipe(name="mine", summary="a test", settings=Mine, build=build, may_change=("pause",))
"""

NOISY = [
    "noisy=true", "train.accumulate=2", "train.average.decay=0.9", "train.data.batch=8",
    "train.schedule.name=cosine", "train.schedule.warmup=3", "train.epochs=4",
    "train.holdfast.checkpoint.steps=2", "train.data.workers=0",
]  # fmt: skip


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(RECIPE)
    return str(path)


def words(recipe: str, run: Path, sets: list[str], *more: str) -> list[str]:
    given = [word for one in sets for word in ("--set", one)]
    return ["train", recipe, "--run-dir", str(run), *given, *more]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}


def train(*given: str, ranks: int = 1) -> subprocess.CompletedProcess[str]:
    launcher: list[str] = []
    if ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.run(
        [sys.executable, *launcher, "-m", "holdfast", *given],
        env=environment(), capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip


def state(run: Path, rank: int = 0) -> dict[str, Any]:
    entry = CheckpointStore(run / "checkpoints").latest(rank=rank)
    assert entry is not None
    return load(entry.path)[0]


def weights(run: Path, rank: int = 0) -> dict[str, torch.Tensor]:
    return state(run, rank)["models"]["model"]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other) or one != one


@pytest.mark.slow
def test_killed_and_resumed_it_ends_as_if_nothing_had_happened(tmp_path: Path, recipe: str):
    whole = train(*words(recipe, tmp_path / "whole", NOISY))
    assert whole.returncode == 0, whole.stderr
    cut = tmp_path / "cut"
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words(recipe, cut, [*NOISY, "pause=0.1"])],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        saved = list((cut / "checkpoints").glob("*.json"))
        if line.startswith("step") and int(line.split()[1]) >= 8 and saved:
            break
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE)
    process.stdout.close()
    assert list((cut / "checkpoints").glob("*.json")), "nothing was saved before the kill"
    last = train("train", recipe, "--resume", str(cut), "--set", "pause=0")
    assert last.returncode == 0, last.stderr
    assert "ended at step 20" in last.stdout
    one, other = state(tmp_path / "whole"), state(cut)
    for part in ("models", "optimizers", "schedulers", "ema", "others", "dice"):
        assert equal(one[part], other[part]), part


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_two_ranks_train_what_one_process_trains(tmp_path: Path, recipe: str):
    """The same global batches, also where they are uneven and windows do not divide."""
    sets = ["train.accumulate=2", "train.data.batch=8", "train.epochs=2"]
    one = train(*words(recipe, tmp_path / "one", sets))
    two = train(*words(recipe, tmp_path / "two", sets), ranks=2)
    assert one.returncode == 0, one.stderr
    assert two.returncode == 0, two.stderr
    alone = weights(tmp_path / "one")
    first, second = (weights(tmp_path / "two", rank) for rank in (0, 1))
    for name, value in alone.items():
        assert torch.equal(first[name], second[name])
        assert torch.allclose(value, first[name], rtol=0, atol=1e-5), name
    # Only the first rank speaks to people, both are recorded.
    assert two.stdout.count("ended at step 10") == 1
    validation = r"validation  loss ([\d.]+)"
    shown = [re.findall(validation, text) for text in (one.stderr, two.stderr)]
    assert len(shown[0]) == len(shown[1]) == 2
    assert [float(v) for v in shown[0]] == pytest.approx([float(v) for v in shown[1]], abs=1e-3)
    assert {"r0", "r1"} <= set(Run.open(tmp_path / "two").lanes())


@pytest.mark.ranks(2)
@pytest.mark.slow
def test_a_rank_that_is_short_of_memory_cuts_its_batches_by_itself(tmp_path: Path, recipe: str):
    """The other goes on with whole ones, and both train what one process trains."""
    sets = ["train.accumulate=2", "train.data.batch=8", "train.epochs=2"]
    one = train(*words(recipe, tmp_path / "one", sets))
    assert one.returncode == 0, one.stderr
    short = [*sets, "fits=1", "train.reduce_late=true"]
    two = train(*words(recipe, tmp_path / "two", short), ranks=2)
    assert two.returncode == 0, two.stderr
    alone = weights(tmp_path / "one")
    first, second = (weights(tmp_path / "two", rank) for rank in (0, 1))
    for name, value in alone.items():
        assert torch.equal(first[name], second[name])
        assert torch.allclose(value, first[name], rtol=0, atol=1e-5), name
    cuts = [
        [event for event in LaneReader(run, lane).events() if event.kind == "batch_split"]
        for run in [Run.open(tmp_path / "two")]
        for lane in ("r0", "r1")
    ]
    assert not cuts[0] and [event.data["parts"] for event in cuts[1]] == [4]


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_a_bad_sample_on_one_rank_is_a_skipped_step_on_both(tmp_path: Path, recipe: str):
    done = train(*words(recipe, tmp_path / "run", ["poisoned=5", "train.data.batch=8"]), ranks=2)
    assert done.returncode == 0, done.stderr
    run = Run.open(tmp_path / "run")
    rows = [LaneReader(run, lane).steps() for lane in ("r0", "r1")]
    skipped = [r["step"][r["skipped"] > 0].tolist() for r in rows]
    assert skipped[0] == skipped[1] and len(skipped[0]) == 3
    first, second = (weights(tmp_path / "run", rank) for rank in (0, 1))
    assert equal(first, second)
    assert all(torch.isfinite(value).all() for value in first.values())


def test_a_signal_to_the_whole_group_saves_and_says_how_to_go_on(tmp_path: Path, recipe: str):
    settings = ["pause=0.02", "train.epochs=50", "train.data.workers=2"]
    command = words(recipe, tmp_path / "run", settings)
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *command], start_new_session=True,
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 9"):
            process.send_signal(signal.SIGTERM)  # as `timeout` does
            os.killpg(process.pid, signal.SIGTERM)
            break
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert "told to stop (SIGTERM)" in out
    assert f"go on with  holdfast train mine --resume {tmp_path / 'run'}" in out
    assert "Traceback" not in err
    assert state(tmp_path / "run")["others"]["counter"]["step"] >= 9


@pytest.mark.slow
def test_the_demo_learns_and_leaves_its_settings(tmp_path: Path):
    run = tmp_path / "run"
    began = time.monotonic()
    sets = ["--set", "train.steps=60", "--set", "model.hidden=64", "--set", "length=32"]
    done = train("train", "demo", "--run-dir", str(run), *sets)
    assert done.returncode == 0, done.stderr
    entropy = float(re.search(r"unigram entropy of the held-out part ([\d.]+)", done.stdout)[1])  # type: ignore[index]
    loss = float(re.search(r"validation  loss ([\d.]+)", done.stdout)[1])  # type: ignore[index]
    assert loss < 0.9 * entropy, (loss, entropy, time.monotonic() - began)
    assert "hidden: 64" in (run / "train.yaml").read_text()
    assert (run / "report.html").is_file()


LEAKING = """
import dataclasses
import torch
from torch import nn
from holdfast import Section
from holdfast.training import Recipe, Task, TrainSettings

class Texts(torch.utils.data.Dataset):
    def __init__(self, count):
        self.texts = [f"text number {number}" for number in range(count)]
    def __len__(self):
        return len(self.texts)
    def __getitem__(self, index):
        return torch.randn(16), torch.tensor(float(len(self.texts[index])))

class Objective:
    def __init__(self):
        self.outputs = []
    def loss(self, model, batch):
        out = model(batch[0])
        self.outputs.append(out)
        return nn.functional.mse_loss(out[:, 0], batch[1])

@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(Section):
    train: TrainSettings = TrainSettings(steps=24)

def build(settings, place):
    return Task(model=nn.Linear(16, 2048), loss=Objective().loss, train=Texts(5000))

RECIPE = Recipe(name="leaking", summary="a test", settings=Mine, build=build)
"""


@pytest.mark.slow
def test_a_list_that_a_recipe_appends_to_is_named_with_its_line(tmp_path: Path):
    """No function of the user's is on the stack when our own loop ends a step."""
    path = tmp_path / "leaking.py"
    path.write_text(LEAKING)
    ended = train(*words(str(path), tmp_path / "run", ["train.data.workers=0"]))
    assert ended.returncode == 0, ended.stderr
    line = LEAKING.splitlines().index("        self.outputs.append(out)") + 1
    said = " ".join(ended.stdout.split())
    assert "Objective.outputs keeps the graphs of past steps alive" in said, ended.stdout
    assert f"leaking.py:{line}" in said and "MEM002" in said
