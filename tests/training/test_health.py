"""Norms over an epoch and a run, and numbers that leave their bands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from holdfast.config import from_dict
from holdfast.errors import SettingsError
from holdfast.report import summarize
from holdfast.report.environment import environment_of
from holdfast.run import LaneReader, Run
from holdfast.training.loop.health import Health, HealthSettings
from holdfast.training.loop.norms import Distribution, GradientNorms
from holdfast.training.loop.progress import Progress
from holdfast.training.settings import TrainSettings
from holdfast.training.trainer import Result, Trainer


class Reported(Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.epochs: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def epoch(self, summary: str) -> None:
        self.epochs.append(summary)


class FakeWatch:
    """Hands over rows and keeps events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.hand_over: Callable[[Mapping[str, float]], None] = lambda row: None

    def each_row(self, listener: Callable[[Mapping[str, float]], None]) -> None:
        self.hand_over = listener

    def await_rows(self) -> None: ...

    def note(self, kind: str, data: Mapping[str, Any]) -> None:
        self.events.append((kind, data))


class Course:
    """Steps without a training: a health check fed row by row."""

    def __init__(self, clip: float | None = None, **given: Any) -> None:
        self.watch, self.lines, self.step = FakeWatch(), list[str](), 0
        settings = from_dict(given, kind=HealthSettings)
        self.health = Health(settings, clip, self.watch, self.lines.append)  # type: ignore[arg-type]

    def steps(self, count: int, numbers: Mapping[str, float] | None = None, **row: float) -> None:
        plain = {"loss": 1.0, "lr": 1e-3, "scale": math.nan, "skipped": 0.0, "clip": 1.0}
        for _ in range(count):
            self.step += 1
            self.watch.hand_over({"grad_norm": 1.0, **plain, **row})
            self.health.stepped(self.step, numbers or {})

    def reported(self, kind: str) -> list[Mapping[str, Any]]:
        return [data for what, data in self.watch.events if what == kind]


def fit(tmp_path: Path, **given: Any) -> tuple[Result, Reported]:
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    net, reported = nn.Linear(4, 1), Reported()
    base: dict[str, Any] = {"device": "cpu", "epochs": 3, "data": {"batch": 4, "workers": 0}}
    trainer = Trainer(
        net,
        lambda net, batch: nn.functional.mse_loss(net(batch[0]), batch[1]),
        TensorDataset(x, x.sum(1, keepdim=True) * 9),
        settings=from_dict({**base, **given}, kind=TrainSettings),
        run_dir=tmp_path / "run",
        progress=reported,
    )
    return trainer.fit(), reported


# ------------------------------------------------------------------ norms


def test_percentiles_are_those_of_all_numbers() -> None:
    values = np.exp(np.random.default_rng(0).normal(0, 2, 20_000))
    seen = Distribution()
    seen.add(values.tolist())
    for share in (50, 90, 99):
        assert seen.percentile(share) == pytest.approx(np.percentile(values, share), rel=0.01)
    assert seen.largest == values.max()


def test_an_epoch_and_a_run_record_the_norms_of_their_own_steps(tmp_path: Path) -> None:
    result, reported = fit(tmp_path, clip=0.5)
    run = Run.open(tmp_path / "run")
    lane = LaneReader(run, "r0")
    norms = np.asarray(lane.steps()["grad_norm"], dtype=float)
    recorded = [event.data for event in lane.events() if event.kind == "gradient_norms"]
    assert [data.get("epoch") for data in recorded] == [0, 1, 2, None]
    for data, part in zip(recorded, [*np.split(norms, 3), norms], strict=True):
        assert data["steps"] == len(part)
        assert data["grad_norm_max"] == pytest.approx(part.max(), rel=1e-5)
        for share in (50, 90, 99):
            nearest = np.percentile(part, share, method="inverted_cdf")
            assert data[f"p{share}"] == pytest.approx(nearest, rel=0.01)
        assert data["clipped"] == 1.0
    # The terminal's line of each epoch, its summary and the report say the same.
    assert all("100 % clipped" in line for line in reported.epochs)
    assert "train.clip=0.5 cuts 100 % of the steps" in result.norms
    shown = environment_of(summarize(run))["norms"]
    assert shown == result.norms


@pytest.mark.parametrize(
    ("clip", "norms", "said"),
    [
        (1.0, [10.0, 12.0, 15.0, 22.4] * 25, "train.clip=23"),
        (30.0, [10.0, 12.0, 15.0, 23.0] * 25, ""),
        (None, [1.0] * 199 + [50.0], "train.clip=1.1"),
        (None, [1.0, 2.0] * 50, ""),
    ],
)
def test_advice_follows_from_the_norms(clip: float | None, norms: list[float], said: str) -> None:
    seen = GradientNorms(clip)
    factor = [min(1.0, (clip or math.inf) / norm) for norm in norms]
    rows = zip(norms, factor, strict=True)
    seen.add({"grad_norm": n, "clip": f, "skipped": 0.0} for n, f in rows)
    assert said in seen.advice() and bool(said) == bool(seen.advice())


def test_steps_that_were_left_out_are_not_clipped_ones() -> None:
    seen = GradientNorms(1.0)
    seen.add([{"grad_norm": 0.5, "clip": 1.0, "skipped": 0.0}] * 3)
    seen.add([{"grad_norm": math.nan, "clip": math.nan, "skipped": 1.0}] * 3)
    assert seen.clipped == 0 and (totals := seen.totals()) is not None and totals.steps == 3


# ------------------------------------------------------------------ bands


def test_the_run_is_looked_at_every_fifty_steps_without_being_asked() -> None:
    assert TrainSettings().health.every == 50
    course = Course(bands={"loss": {"high": 2.0}})
    course.steps(49, loss=5.0)
    assert not course.lines
    course.steps(1, loss=5.0)
    (event,) = course.reported("health")
    assert (event["number"], event["value"], event["high"]) == ("loss", 5.0, 2.0)
    assert course.lines == [
        "step 50: loss 5.000 is high; healthy up to 2.000 (train.health.bands.loss)"
    ]


def test_a_band_of_the_recipe_decides_and_not_a_fixed_one() -> None:
    wide = Course(bands={"grad_norm": {"low": 1.0, "high": 60.0}})
    wide.steps(500, grad_norm=23.0)
    assert not wide.lines and not wide.reported("health")
    narrow = Course(bands={"grad_norm": {"low": 0.5, "high": 5.0, "critical": 10.0}})
    narrow.steps(50, grad_norm=7.0)
    narrow.steps(50, grad_norm=23.0)
    narrow.steps(50, grad_norm=0.1)
    assert [event["state"] for event in narrow.reported("health")] == ["high", "critical", "low"]


def test_without_a_band_a_number_is_compared_with_the_median_of_the_run() -> None:
    course = Course()
    course.steps(400, grad_norm=17.0, loss=3.0)
    assert not course.lines
    course.steps(50, grad_norm=400.0, loss=3.0)
    (line,) = course.lines
    assert "grad_norm 400.0 is high" in line and "the median of this run is 16.98" in line


def test_a_number_that_a_recipe_notes_has_a_band_too() -> None:
    course = Course(bands={"completion_rate": {"low": 0.5}})
    course.steps(50, {"completion_rate": 0.2, "other": 1e9})
    assert [event["number"] for event in course.reported("health")] == ["completion_rate"]


def test_what_stays_out_is_reported_ever_less_often_and_its_return_once() -> None:
    course = Course(every=10, bands={"loss": {"high": 2.0}})
    course.steps(160, loss=5.0)
    assert len(course.reported("health")) == 16 and len(course.lines) == 5  # 1, 2, 4, 8, 16
    course.steps(20, loss=1.0)
    assert len(course.lines) == 6 and "healthy again" in course.lines[-1]


def test_steps_of_an_epoch_are_counted_by_band() -> None:
    course = Course(bands={"grad_norm": {"low": 0.5, "high": 5.0, "critical": 10.0}})
    course.steps(30, grad_norm=1.0)
    course.steps(25, grad_norm=7.0)
    course.steps(1, grad_norm=math.inf, skipped=1.0, clip=math.nan)
    course.health.epoch_ends(0)
    course.steps(4, grad_norm=1.0)
    course.health.epoch_ends(1)
    first, second = course.reported("gradient_norms")
    assert first["bands"] == {"healthy": 30, "high": 25, "non-finite": 1}
    assert second["bands"] == {"healthy": 4}


def test_rows_are_not_kept_for_ever() -> None:
    for every in (50, 0):
        course = Course(every=every)
        course.steps(1000)
        assert len(course.health._rows) <= 50


def test_a_band_that_is_none_is_refused() -> None:
    with pytest.raises(SettingsError, match="have to rise"):
        from_dict({"bands": {"loss": {"low": 3.0, "high": 2.0}}}, kind=HealthSettings)


def test_a_healthy_run_hears_nothing_and_an_unhealthy_one_is_reported(tmp_path: Path) -> None:
    healthy, reported = fit(tmp_path / "a", epochs=8)
    assert healthy.step == 128 and not any("is high" in line for line in reported.lines)
    band = {"health": {"bands": {"loss": {"high": 1e-9}}}}
    _, reported = fit(tmp_path / "b", epochs=8, **band)
    assert sum("loss" in line and "is high" in line for line in reported.lines) == 2


def test_every_row_of_a_device_reaches_the_check(tmp_path: Path) -> None:
    guard = {"guard": {"device_path": True}}
    result, _ = fit(tmp_path, holdfast=guard)
    events = LaneReader(Run.open(tmp_path / "run"), "r0").events()
    last = [event.data for event in events if event.kind == "gradient_norms"][-1]
    assert last["steps"] == result.step == 48
