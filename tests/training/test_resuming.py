"""Whole runs that go on from their best checkpoint, with the settings they had or with others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.test_trainer import data, loss, noisy

from holdfast.checkpoint.file import load
from holdfast.checkpoint.store import CheckpointStore
from holdfast.config import Section
from holdfast.run import LaneReader, Run
from holdfast.training import load_weights
from holdfast.training.recipe import Recipe
from holdfast.training.recipe_run import run_recipe
from holdfast.training.resolving import resolve
from holdfast.training.resuming import best_checkpoint
from holdfast.training.settings import TrainSettings
from holdfast.training.task import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(Section):
    train: TrainSettings = dataclasses.field(default_factory=lambda: TrainSettings(epochs=3))


SETS = ("train.device=cpu", "train.data.workers=0", "train.data.batch=8")


def recipe(validations: Iterator[float]) -> Recipe:
    """Trains in earnest, but validation says what it is told to."""

    def build(settings: Own, place: Any) -> Task:
        latest = 0.0

        def measure(net: torch.nn.Module, batch: Any) -> dict[str, float]:
            return {"loss": latest if batch[0].shape[0] < 8 else reported()}

        def reported() -> float:
            nonlocal latest
            latest = next(validations)
            return latest

        return Task(
            model=noisy(), loss=loss, train=data(), validation=data(8, seed=1), measure=measure
        )

    return Recipe(name="mine", summary="", settings=Own, build=build)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Three epochs of eight steps, the second of which was the best."""
    own = recipe(iter([3.0, 1.0, 2.0]))
    path = tmp_path / "first"
    run_recipe(own, resolve(own, overrides=SETS, platform="none"), run_dir=path, quiet=True)
    return path


def newest(run: Path) -> dict[str, Any]:
    entry = CheckpointStore(run / "checkpoints").latest()
    assert entry is not None and entry.step == 24
    return load(entry.path)[0]


def test_it_goes_on_from_the_best_as_the_run_did_and_leaves_that_alone(
    tmp_path: Path, trained: Path
) -> None:
    best = best_checkpoint(trained)
    assert best.step == 16 and best.metric("validation") == 1.0
    before = sorted(path.name for path in trained.rglob("*"))
    own, branch = recipe(iter([2.0])), tmp_path / "branch"
    settings = resolve(own, overrides=SETS, platform="none")
    run_recipe(own, settings, run_dir=branch, resume=best.path, quiet=True)
    assert LaneReader(Run.open(branch), "r0").steps()["step"].tolist() == list(range(16, 24))
    one, other = newest(trained)["models"]["model"], newest(branch)["models"]["model"]
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert sorted(path.name for path in trained.rglob("*")) == before


def test_the_new_run_has_the_best_state_although_it_found_none_better(
    tmp_path: Path, trained: Path
) -> None:
    own, branch = recipe(iter([2.0])), tmp_path / "branch"
    settings = resolve(own, overrides=[*SETS, "train.optimizer.lr=1e-2"], platform="none")
    path = best_checkpoint(trained).path
    run_recipe(own, settings, run_dir=branch, resume=path, quiet=True)
    rates = LaneReader(Run.open(branch), "r0").steps()["lr"]
    assert rates.tolist() == pytest.approx([1e-2] * 8)
    net = noisy()
    assert load_weights(net, branch).name == path.name
    assert best_checkpoint(branch).step == 16
