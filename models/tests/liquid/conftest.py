"""Small runs of the family, quick enough for every test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.training import Place, Task, Trainer, resolve
from holdfast.training.loop.progress import Progress
from holdfast_models.liquid.recipe import RECIPE, build

SMALL = [
    "model.hidden_dim=16", "model.liquid_units=8", "model.spiking_units=8",
    "model.embedding_dim=16", "model.attention.heads=2", "model.attention.steps=3",
    "model.spikes.steps=3", "model.mamba.gate_heads=2", "model.mamba.cross_heads=2",
    "data.megabytes=0.02", "data.sequence_length=12", "data.samples=48",
    "train.data.batch=4", "train.steps=6", "train.schedule.warmup=0",
    "train.schedule.name=constant", "train.validation.batches=2", "pictures=false",
    "train.holdfast.run.quiet=true", "continual.importance_samples=4",
]  # fmt: skip
QUIET = Place(torch.device("cpu"), rank=1)


@pytest.fixture
def settings_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """``settings_of("model.mamba.on=true")``: of a run that takes a second."""
    folder = tmp_path_factory.getbasetemp() / "liquid_data"

    def make(*overrides: str, preset: str | None = None) -> Any:
        return resolve(
            RECIPE,
            preset=preset,
            overrides=[*SMALL, f"data.folder={folder}", *overrides],
            platform="none",
        )

    return make


@pytest.fixture
def task_of() -> Callable[[Any], Task]:
    """The task of some settings, with the same weights each time."""

    def make(settings: Any) -> Task:
        torch.manual_seed(settings.train.seed.seed)
        return build(settings, QUIET)

    return make


@pytest.fixture
def fit(tmp_path: Path) -> Callable[..., Any]:
    """Train a task in a folder of this test."""

    def run(task: Task, settings: Any, name: str = "run", **how: Any) -> Any:
        trainer = Trainer.of(
            task, settings.train, run_dir=tmp_path / name, progress=Progress(), name="liquid", **how
        )
        return trainer.fit()

    return run
