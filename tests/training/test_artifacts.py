"""Hooks of a task that write into the run folder: throttled, and never the end of a training."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from holdfast.checkpoint import writer
from holdfast.checkpoint.file import load
from holdfast.config import from_dict
from holdfast.run import LaneReader, Run
from holdfast.training.loop import artifacts
from holdfast.training.loop.artifacts import ERRORS, RunHooks
from holdfast.training.loop.progress import Progress
from holdfast.training.settings import TrainSettings
from holdfast.training.trainer import Result, Trainer
from holdfast.training.weights import read_weights


@pytest.fixture
def unthrottled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "_SHARE", math.inf)


class Lines(Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.best: list[int] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def validated(self, step: int, values: Mapping[str, float], best: bool) -> None:
        self.best += [step] * best


def fit(folder: Path, net: nn.Module, progress: Progress | None = None, **more: Any) -> Result:
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    given = {"device": "cpu", "epochs": 4, "data": {"batch": 8, "workers": 0}}
    given |= {"optimizer": {"lr": 0.05}, "average": {"decay": 0.9}}

    def loss(model: nn.Module, batch: tuple[Tensor]) -> Tensor:
        return model(batch[0]).square().mean()

    return Trainer(
        net,
        loss,
        TensorDataset(x),
        TensorDataset(x[:8]),
        from_dict(given, kind=TrainSettings),
        run_dir=folder,
        progress=progress or Lines(),
        **more,
    ).fit()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))


def weights(net: nn.Module) -> list[float]:
    return torch.cat([p.detach().flatten() for p in net.parameters()]).tolist()


@pytest.mark.usefixtures("unthrottled")
def test_a_best_validation_is_reported_with_the_model_that_was_measured(tmp_path: Path) -> None:
    reported: list[tuple[Path, int, float]] = []
    net, seen = model(), Lines()
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))[:8]

    def improved(folder: Path, step: int) -> None:
        assert not net.training and not net[1].training  # type: ignore[index]
        reported.append((folder, step, net(x).square().mean().item()))

    shown: list[float] = []
    validated = lambda step, values: shown.append(values["loss"])  # noqa: E731
    fit(tmp_path / "run", net, seen, improved=improved, validated=validated)
    assert seen.best == [4, 8, 12, 16] == [step for _, step, _ in reported]
    assert {folder for folder, *_ in reported} == {tmp_path / "run"}
    assert [value for *_, value in reported] == shown  # the averaged weights, without dropout
    assert net.training and net[1].training  # type: ignore[index]


def test_the_end_is_reported_with_the_best_weights_on_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = writer.save

    def slowly(*given: Any, **named: Any) -> Any:
        time.sleep(0.3)
        return written(*given, **named)

    monkeypatch.setattr(writer, "save", slowly)
    found: list[Path] = []
    result = fit(
        tmp_path / "run", model(), ended=lambda folder: found.append(read_weights(folder)[1])
    )
    assert result.hook_errors == 0 and result.best_step == 16
    assert [load(path)[1]["step"] for path in found] == [16]


@pytest.mark.usefixtures("unthrottled")
def test_what_a_hook_draws_or_breaks_changes_nothing_of_the_training(tmp_path: Path) -> None:
    def improved(folder: Path, step: int) -> None:
        torch.rand(3)
        random.random()
        raise ValueError(f"no picture\nof step {step}")

    plain, hooked, seen = model(), model(), Lines()
    assert fit(tmp_path / "plain", plain).hook_errors == 0
    result = fit(tmp_path / "hooked", hooked, seen, improved=improved)
    assert weights(plain) == weights(hooked)
    assert result.step == 16 and result.hook_errors == len(seen.best) == 4
    lines = [line for line in seen.lines if "Task.improved failed at step 8" in line]
    assert len(lines) == 1 and lines[0].endswith(": ValueError: no picture of step 8")
    assert result.run is not None
    text = (result.run / ERRORS).read_text()
    assert text.count("Traceback (most recent call last)") == 4 and "in improved" in text
    events = LaneReader(Run.open(result.run), "r0").events()
    noted = [event.data for event in events if event.kind == "hook_failed"]
    assert [data["errors"] for data in noted] == [1, 2, 3, 4]
    assert noted[0]["hook"] == "improved" and noted[0]["step"] == 4


def test_a_slow_hook_takes_a_tenth_of_the_time_at_most(tmp_path: Path) -> None:
    now, calls = 0.0, list[int]()
    run = Run.create(tmp_path / "run", {})
    hooks = RunHooks(run, lambda kind, data: None, print, clock=lambda: now)

    def paint(folder: Path, step: int) -> None:
        nonlocal now
        calls.append(step)
        now += 3.0
        raise OSError  # one that fails takes its time, too

    for step in range(100):
        hooks.improved(paint, step, contextlib.nullcontext())
        now += 1.0
    assert calls == [0, 27, 54, 81]  # each 30 seconds after the one before began
    assert hooks.errors == len(calls)
