"""A validation far above its best: a warning, or back to the best state."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.test_trainer import Seen, data, loss, model, settings

from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli import main
from holdfast.run import LaneReader, Run
from holdfast.training.loop.stopping import BestSoFar, StopSettings
from holdfast.training.loop.validation import ValidationSettings
from holdfast.training.loop.validation_spikes import ValidationSpikes
from holdfast.training.trainer import Result, Trainer

EPOCH = 8


class Damaged:
    """Multiplies the weights after the last step of some epochs: the validation sees it first."""

    def __init__(self, tmp_path: Path, *epochs: int, **given: Any) -> None:
        self.net, self.run, self.seen = model(), tmp_path / "run", Seen()
        self._at = [epoch * EPOCH for epoch in epochs]
        self.how = settings(epochs=10, optimizer={"lr": 0.01}, **given)

    def fit(self) -> Result:
        return Trainer(
            self.net, loss, data(), data(16, seed=1), self.how,
            run_dir=self.run, progress=self.seen, stepped=self._damage,
        ).fit()  # fmt: skip

    def _damage(self, step: int) -> None:
        if step in self._at:
            with torch.no_grad():
                for parameter in self.net.parameters():
                    parameter.mul_(30.0)

    def events(self, kind: str) -> list[dict[str, Any]]:
        found = LaneReader(Run.open(self.run), "r0").events()
        return [dict(event.data) for event in found if event.kind == kind]

    @property
    def lines(self) -> list[str]:
        return [line for line in self.seen.lines if ": validation loss " in line]


def test_a_spike_is_one_line_with_advice_and_an_event(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path, 5)
    damaged.fit()
    (line,) = damaged.lines
    assert line.startswith("step 40: validation loss ") and "at step 32; resume the best" in line
    assert "--resume best" in line and "train.optimizer.lr or train.clip" in line
    (event,) = damaged.events("validation_spike")
    assert event["value"] > 5 * event["best"] and event["best_step"] == 32
    assert (event["metric"], event["restored"], event["why_not"]) == ("loss", False, "")
    rows = LaneReader(Run.open(damaged.run), "r0").steps()
    assert rows["lr"][-1] == pytest.approx(0.01)


def test_a_run_that_is_well_hears_nothing(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path)
    damaged.fit()
    assert not damaged.lines and not damaged.events("validation_spike")


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path, 5, validation={"spike": 0})
    damaged.fit()
    assert not damaged.lines


def test_rollback_restores_the_best_state_and_halves_the_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = Damaged(tmp_path, 5, validation={"spike_action": "rollback"})
    result = damaged.fit()
    (line,) = damaged.lines
    assert line.startswith("step 40  went back to the best state by validation (")
    (event,) = damaged.events("validation_spike")
    assert event["restored"]
    (back,) = damaged.events("rollback")
    assert (back["to"], back["steps"], back["lr_factor"], back["left"]) == (32, 8, 0.5, 1)
    rows = LaneReader(Run.open(damaged.run), "r0").steps()
    assert rows["lr"][39] == pytest.approx(0.01) and rows["lr"][40] == pytest.approx(0.005)
    values = [values["loss"] for _, values, _ in damaged.seen.validations]
    assert values[4] > 5 * values[3] and values[5] < 2 * values[3]
    assert result.best < values[3]
    assert main(["report", str(damaged.run)]) == 0
    report = " ".join(capsys.readouterr().out.split())
    assert "Went back to the best state by validation (" in report


def test_the_state_that_is_saved_next_does_not_bear_the_metric_of_the_spike(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path, 10, validation={"spike_action": "rollback"})
    damaged.fit()  # the last epoch: its state is saved whatever it is
    entries = CheckpointStore(damaged.run / "checkpoints").entries()
    last = max(entries, key=lambda entry: entry.step)
    assert last.step == 80 and math.isnan(last.metric("validation"))


def test_it_is_done_so_often_and_not_again(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path, 3, 5, 7, validation={"spike_action": "rollback"})
    damaged.fit()
    assert [one["restored"] for one in damaged.events("validation_spike")][:3] == [
        True,
        True,
        False,
    ]
    refused = next(line for line in damaged.lines if line.startswith("step 56: "))
    assert "not restored: that was done 2 times (rollback.best)" in refused
    rows = LaneReader(Run.open(damaged.run), "r0").steps()
    assert rows["lr"][55] == pytest.approx(0.0025)


class Watching:
    """Notes what a watch would be asked for."""

    def __init__(self) -> None:
        self.noted: list[float] = []

    def restore_best(self, why: str) -> str:
        return ""

    def note(self, kind: str, data: Any) -> None:
        self.noted.append(data["value"])


@pytest.mark.parametrize(
    ("mode", "values", "spikes"),
    [
        ("min", [1.0, 4.9, 5.1], [5.1]),
        ("min", [1.0, 6.0, 7.0, 1.0, 8.0], [6.0, 8.0]),  # once while it lasts
        ("min", [1.0, math.inf], [math.inf]),
        ("min", [-1.0, 100.0], []),  # nothing can be said of shares of it
        ("min", [math.nan, 100.0], []),
        ("max", [1.0, 100.0], []),
    ],
)
def test_what_counts_as_a_spike(mode: Any, values: list[float], spikes: list[float]) -> None:
    best_so_far, watching = BestSoFar(StopSettings(mode=mode)), Watching()
    lines: list[str] = []
    looking = ValidationSpikes(ValidationSettings(), best_so_far, watching, lines.append)  # type: ignore[arg-type]
    for step, value in enumerate(values):
        best_so_far.validated(step, {"loss": value})
        looking.look(step, "loss", value)
    assert watching.noted == spikes and len(lines) == len(spikes)


def test_a_validation_that_is_not_a_number_is_a_spike() -> None:
    best_so_far, watching = BestSoFar(StopSettings()), Watching()
    lines: list[str] = []
    looking = ValidationSpikes(ValidationSettings(), best_so_far, watching, lines.append)  # type: ignore[arg-type]
    best_so_far.validated(1, {"loss": 2.0})
    assert not looking.look(2, "loss", math.nan)
    assert lines[0].startswith("step 2: validation loss nan is far from its best, 2 at step 1;")
