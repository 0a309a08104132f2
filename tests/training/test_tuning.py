"""A run that is resumed with other settings of its optimizer or schedule uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.training.test_trainer import Seen, data, fit, fit_cut, noisy, settings, weights

from holdfast.checkpoint.file import load
from holdfast.checkpoint.store import CheckpointStore
from holdfast.run import LaneReader, Run
from holdfast.training.trainer import Trainer

CUT = 11
FIRST = {"lr": 0.05, "weight_decay": 0.01, "betas": [0.9, 0.99]}


def resumed(tmp_path: Path, then: dict[str, Any], now: dict[str, Any]) -> tuple[Seen, list[float]]:
    """Train to the middle of the second epoch, go on; what was said, and every rate since."""
    whole = settings(epochs=3, **then)
    fit_cut(tmp_path, whole, settings(**{**then, "epochs": 3, "steps": CUT}), noisy())
    seen = Seen()
    how = settings(**{"epochs": 3, **then, **now})
    result = fit(tmp_path, how, noisy(), validation=data(16, seed=2), resume=True, progress=seen)
    run = Run.open(tmp_path / "run")
    rows = LaneReader(run, run.lanes()[-1]).steps()
    assert rows["step"].tolist() == list(range(CUT, result.step))
    return seen, [float(rate) for rate in rows["lr"]]


def groups(tmp_path: Path) -> list[dict[str, Any]]:
    newest = CheckpointStore(tmp_path / "run" / "checkpoints").latest()
    assert newest is not None
    return load(newest.path)[0]["optimizers"][0]["groups"]


def test_a_new_learning_rate_is_used_from_the_first_step_on(tmp_path: Path) -> None:
    seen, rates = resumed(tmp_path, {"optimizer": FIRST}, {"optimizer": FIRST | {"lr": 0.002}})
    assert rates == pytest.approx([0.002] * 13)
    said = [line for line in seen.lines if "->" in line]
    assert said == [f"from step {CUT} on: train.optimizer.lr 0.05 -> 0.002"]


def test_other_numbers_of_the_optimizer_are_used_too(tmp_path: Path) -> None:
    now = FIRST | {"weight_decay": 0.3, "betas": [0.8, 0.95]}
    seen, rates = resumed(tmp_path, {"optimizer": FIRST}, {"optimizer": now})
    assert rates == pytest.approx([0.05] * 13)
    found = groups(tmp_path)
    assert sorted(group["weight_decay"] for group in found) == [0.0, 0.3]
    assert all(tuple(group["betas"]) == (0.8, 0.95) for group in found)
    assert any("weight_decay 0.01 -> 0.3" in line for line in seen.lines)


def test_another_schedule_is_followed_at_once(tmp_path: Path) -> None:
    linear = {"schedule": {"name": "linear"}}
    seen, rates = resumed(tmp_path, {"optimizer": FIRST}, linear)
    assert rates == pytest.approx([0.05 * (24 - step) / 24 for step in range(CUT, 24)])
    assert any("train.schedule.name constant -> linear" in line for line in seen.lines)


def test_a_longer_run_stretches_its_schedule_and_says_so(tmp_path: Path) -> None:
    linear = {"optimizer": FIRST, "schedule": {"name": "linear"}}
    seen, rates = resumed(tmp_path, linear, {"epochs": 6})
    assert rates == pytest.approx([0.05 * (48 - step) / 48 for step in range(CUT, 48)])
    assert any("steps of the schedule 24 -> 48" in line for line in seen.lines)


def test_a_plateau_does_not_lower_a_rate_that_was_asked_for(tmp_path: Path) -> None:
    plateau = {"schedule": {"name": "plateau", "patience": 0, "threshold": 10.0}}
    then = {"optimizer": FIRST, "validation": {"steps": 2}, **plateau}
    _, rates = resumed(tmp_path, then, {"optimizer": FIRST | {"lr": 0.01}})
    assert rates[0] == pytest.approx(0.01)


def test_a_change_outlives_a_kill_before_the_next_checkpoint(tmp_path: Path) -> None:
    """The state says what it was saved with, not a file beside it that was written since."""
    fit_cut(tmp_path, settings(epochs=3), settings(epochs=3, steps=CUT), noisy())
    lower = settings(epochs=3, optimizer={"lr": 0.002})

    def killed(*_: Any) -> Any:
        raise KeyboardInterrupt

    how: dict[str, Any] = {"run_dir": tmp_path / "run", "resume": True, "progress": Seen()}
    with pytest.raises(KeyboardInterrupt):
        Trainer(noisy(), killed, data(), data(16, seed=2), lower, **how).fit()
    fit(tmp_path, lower, noisy(), validation=data(16, seed=2), resume=True)
    run = Run.open(tmp_path / "run")
    rows = LaneReader(run, run.lanes()[-1]).steps()
    assert rows["lr"].tolist() == pytest.approx([0.002] * 13)


def test_without_a_change_nothing_is_said_and_no_bit_differs(tmp_path: Path) -> None:
    seen, _ = resumed(tmp_path / "parts", {"optimizer": FIRST}, {})
    assert not [line for line in seen.lines if "->" in line]
    whole = noisy()
    fit(tmp_path / "whole", settings(epochs=3, optimizer=FIRST), whole, validation=data(16, seed=2))
    newest = CheckpointStore(tmp_path / "parts" / "run" / "checkpoints").latest()
    assert newest is not None
    again = noisy()
    again.load_state_dict(load(newest.path)[0]["models"]["model"])
    assert weights(again) == weights(whole)
