"""What a run will take is said, or refused, before anything of it is built."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tests.training.test_trainer import data, loss, model

from holdfast.config import Section
from holdfast.errors import HoldfastError
from holdfast.training import forecast
from holdfast.training.forecast import Forecast
from holdfast.training.recipe import Recipe
from holdfast.training.recipe_run import run_recipe
from holdfast.training.settings import TrainSettings
from holdfast.training.task import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(Section):
    train: TrainSettings = dataclasses.field(
        default_factory=lambda: TrainSettings(steps=2, device="cpu")
    )


def run(folder: Path, bytes_needed: float, *, quiet: bool) -> list[str]:
    """Train on a machine with 1 GB free; in which order things were asked for."""
    asked: list[str] = []

    def build(settings: Own, place: Any) -> Task:
        asked.append("build")
        return Task(model=model(), loss=loss, train=data())

    def expect(settings: Own, place: Any) -> Forecast:
        asked.append("forecast")
        return Forecast(memory={"all of it": bytes_needed}, fits="take less")

    own = Recipe(name="mine", summary="", settings=Own, build=build, forecast=expect)
    try:
        run_recipe(own, Own(), run_dir=folder, quiet=quiet)
    except HoldfastError as error:
        asked.append(str(error))
    return asked


@pytest.mark.parametrize("quiet", [False, True])
def test_what_cannot_fit_is_refused_before_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    monkeypatch.setattr(forecast, "free_memory", lambda device: 1e9)
    assert run(tmp_path / "run", 3e9, quiet=quiet) == [
        "forecast",
        "mine needs about 3.0 GB of memory (all of it 3.0 GB) and cpu has 1.0 GB free; take less",
    ]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("quiet", [False, True])
def test_what_fits_is_said_unless_quiet_and_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, quiet: bool
) -> None:
    monkeypatch.setattr(forecast, "free_memory", lambda device: 1e9)
    assert run(tmp_path / "run", 5e8, quiet=quiet) == ["forecast", "build"]
    said = "forecast on cpu: about 500 MB of memory" in capsys.readouterr().out
    assert said is not quiet
