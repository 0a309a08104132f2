"""The built-in recipe, small: what it promises about settings, memory and step times."""

from __future__ import annotations

import gc
import itertools
from pathlib import Path

import psutil
import pytest
import torch

from holdfast.errors import SettingsError
from holdfast.training.demo import (
    RECIPE,
    DemoSettings,
    build,
    entropy,
)
from holdfast.training.device import Place
from holdfast.training.loop.progress import Progress
from holdfast.training.recipes import resolve
from holdfast.training.trainer import Trainer

CPU = Place(torch.device("cpu"), rank=1)  # one that prints nothing


def test_the_entropy_is_that_of_the_counts() -> None:
    assert entropy(torch.tensor([0, 1]), torch.tensor([0, 1])) == pytest.approx(0.6931, abs=1e-4)


def test_a_text_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("to be or not to be, " * 50)
    task = build(DemoSettings(text=str(path), length=8), CPU)
    assert len(task.train) == (900 - 1) // 8  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="too few for windows"):
        build(DemoSettings(text=str(path), length=500), CPU)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["text=nowhere.txt"], "'nowhere.txt', which is no file"),
        (["model.hiden=3"], "did you mean 'model.hidden'"),
        (["train.optimizer.lr=-1"], "train.optimizer.lr must be a number above 0"),
        (["train.optimizer.name=adamww"], "(?i)adamw"),
        (["train.precision=fp8"], "one of auto, fp32, bf16, fp16"),
        (["train.compile.mode=fast"], "train.compile.mode must be"),
        (["train.epochs=null"], "both null"),
        (["train.log.channels=performence"], "did you mean 'performance'"),
    ],
)
def test_wrong_settings_are_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        resolve(RECIPE, None, None, overrides, "none")
    assert "\n" not in str(caught.value)


def test_yaml_means_what_people_think(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("train:\n  optimizer: {lr: 1e-4}\n  compile: {mode: false}\n  clip: null\n")
    found = resolve(RECIPE, str(path), None, ["train.validation.epochs=2"], "none")
    assert isinstance(found, DemoSettings)
    assert found.train.optimizer.lr == 1e-4 and found.train.compile.name == "none"
    assert found.train.clip is None and found.train.validation.epochs == 2
    assert found.train.epochs == DemoSettings().train.epochs  # the recipe's own default stays


@pytest.mark.slow
def test_memory_stays_where_it_is(tmp_path: Path) -> None:
    """After each step at most 1.1 times what it was before, and flat over epochs."""
    settings = resolve(
        RECIPE, None, "tiny", ["train.steps=150", "length=16", "train.data.workers=0"], "none"
    )
    assert isinstance(settings, DemoSettings)
    used: list[int] = []

    def stepped(step: int) -> None:
        if step >= 10:
            used.append(psutil.Process().memory_info().rss)

    task = build(settings, CPU)
    task.stepped = stepped
    gc.collect()
    Trainer.of(task, settings.train, run_dir=tmp_path / "run", progress=Progress()).fit()
    assert all(after <= 1.1 * before for before, after in itertools.pairwise(used))
    assert used[-1] <= 1.1 * used[0]
