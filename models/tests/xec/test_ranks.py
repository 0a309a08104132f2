"""The calorimeter on two ranks: what one process would have learned, skipped together."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.checkpoint.file import load
from holdfast.checkpoint.store import CheckpointStore
from holdfast.run import LaneReader, Run
from holdfast.training import resolve, run_recipe
from holdfast_models.xec.data.synth_files import write_batches

# No dropout, whose random numbers are others on each rank; one energy may be no number.
RECIPES = """
import dataclasses, math, os
from torch import nn
from holdfast_models.xec.recipes import REGRESSOR

def build(settings, place):
    task = REGRESSOR.build(settings, place)
    for one in task.model.modules():
        if isinstance(one, nn.Dropout):
            one.p = 0.0
    if "POISONED" in os.environ:
        task.train._events["energy"][int(os.environ["POISONED"])] = math.nan
    return task

RECIPE = dataclasses.replace(REGRESSOR, name="plain", build=build, forecast=None)
"""
MORE = [
    "model.encoder_dim=64", "model.hidden_dim=16", "model.channel_dropout_rate=0",
    "tasks.timing.enabled=false", "tasks.uvwFI.enabled=false", "tasks.angle.enabled=false",
    "data.cache=ram", "train.data.batch=4", "train.steps=2", "train.clip=null",
    "train.schedule.name=constant", "train.optimizer.name=sgd", "train.optimizer.lr=0.003",
    "train.holdfast.guard.replay=false", "train.holdfast.guard.explain=false",
]  # fmt: skip


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "plain.py"
    path.write_text(RECIPES)
    return path


@pytest.fixture
def sets(tmp_path: Path, tiny: list[str], synth: Any) -> list[str]:
    """The settings, on eight events."""
    few = tmp_path / "few.root"
    write_batches(few, iter([{name: one[:8] for name, one in synth.events.items()}]))
    return [*tiny, *MORE, f"data.train_path={few}", "data.val_path="]


def launch(recipe: Path, run: Path, sets: list[str], **more: str) -> str:
    given = [word for one in sets for word in ("--set", one)]
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
            "-m", "holdfast", "train", str(recipe), "--preset", "small", "--platform", "none",
            "--run-dir", str(run), *given,
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", **more},
        capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def weights(run: Path, rank: int = 0) -> dict[str, Tensor]:
    entry = CheckpointStore(run / "checkpoints").latest(rank=rank)
    assert entry is not None
    return load(entry.path)[0]["models"]["model"]


@pytest.mark.ranks(2)
def test_19_7_two_ranks_train_what_one_process_trains(
    tmp_path: Path, recipe: Path, sets: list[str]
) -> None:
    said = launch(recipe, tmp_path / "two", sets)
    assert said.count("ended at step 2") == 1
    spec = importlib.util.spec_from_file_location("plain", recipe)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    settings = resolve(module.RECIPE, None, "small", sets, "none")
    with contextlib.redirect_stdout(io.StringIO()):
        run_recipe(module.RECIPE, settings, run_dir=tmp_path / "one", quiet=True)
    alone = weights(tmp_path / "one")
    first, second = (weights(tmp_path / "two", rank) for rank in (0, 1))
    for name, value in alone.items():
        assert torch.equal(first[name], second[name]), name
        assert torch.allclose(value, first[name], rtol=0, atol=1e-5), name


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_17_9_an_energy_that_is_no_number_on_one_rank_is_skipped_on_both(
    tmp_path: Path, recipe: Path, sets: list[str]
) -> None:
    """Of 8 events on two ranks, two epochs of two steps: each meets it once."""
    run = tmp_path / "run"
    sets = [*sets, "train.steps=null", "train.epochs=2"]
    launch(recipe, run, sets, POISONED="5")
    lanes = [LaneReader(Run.open(run), lane).steps() for lane in ("r0", "r1")]
    skipped = [one["step"][one["skipped"] > 0].tolist() for one in lanes]
    assert len(skipped[0]) == 2 and skipped[0] == skipped[1]
    first, second = weights(run, 0), weights(run, 1)
    assert all(torch.equal(one, second[name]) for name, one in first.items())
    assert all(one.isfinite().all() for one in first.values() if one.is_floating_point())
