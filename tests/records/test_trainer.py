"""The trainer's events: a training writes each kind, and it is read back as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from holdfast.config import from_dict
from holdfast.detectors.judge import Judge
from holdfast.records import KINDS, Kind, RecordError, read, trainer
from holdfast.records.trainer import (
    EpochBegins,
    EpochEnded,
    GradientNormTotals,
    HookFailed,
    OutOfBand,
    SettingsChanged,
    TrainerSetup,
    TrainingEnded,
    TrainingNumbers,
    Validated,
    ValidationSpike,
)
from holdfast.run import LaneReader, Run
from holdfast.training.loop.progress import Progress
from holdfast.training.settings import TrainSettings
from holdfast.training.trainer import Trainer
from holdfast.types import Event

# A spike of the validation after an epoch, a hook that fails, a norm out of its band.
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "epochs": 7,
    "data": {"batch": 8, "workers": 0},
    "optimizer": {"lr": 0.01},
    "health": {"bands": {"grad_norm": {"high": 1e-9, "critical": 1e-6}}},
    "validation": {"spike": 2.0},
}
STEPS = 8 * SETTINGS["epochs"]


def train(folder: Path, **given: Any) -> Run:
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    x = torch.randn(64, 4)

    def damage(step: int) -> None:
        if step == 40:
            with torch.no_grad():
                net.weight.mul_(30.0)

    def fails(folder: Path, step: int) -> None:
        raise RuntimeError("no space")

    whole = TensorDataset(x, x.sum(1, keepdim=True))
    Trainer(
        net,
        lambda net, batch: nn.functional.mse_loss(net(batch[0]), batch[1]),
        whole,
        whole,
        from_dict(SETTINGS | given, kind=TrainSettings),
        run_dir=folder,
        progress=Progress(),
        stepped=damage,
        improved=fails,
        resume=bool(given),
    ).fit()
    return Run.open(folder)


def written(run: Run) -> list[Kind]:
    """The records of this theme in a run folder."""
    found: list[Kind] = []
    for event in (e for lane in run.lanes() for e in LaneReader(run, lane).events()):
        kind = KINDS.get(event.kind)
        if kind is not None and kind.__module__ == trainer.__name__:
            record = kind.from_dict(event.data)
            assert repr(kind.from_dict(record.to_dict())) == repr(record) == repr(event.record)
            found.append(record)
    return found


def test_every_kind_of_the_trainer(tmp_path: Path) -> None:
    train(tmp_path / "run")
    more = SETTINGS["epochs"] + 1
    found = written(train(tmp_path / "run", epochs=more, optimizer={"lr": 0.005}))
    assert {type(one) for one in found} == {
        kind for kind in KINDS.values() if kind.__module__ == trainer.__name__
    }
    (setup, _) = (one for one in found if isinstance(one, TrainerSetup))
    assert (setup.workers, setup.parameters, setup.trained_parameters) == (0, 5, 5)
    begins = [one.epoch for one in found if isinstance(one, EpochBegins)]
    assert begins == list(range(1, more + 1))
    epoch = next(one for one in found if isinstance(one, EpochEnded))
    assert (epoch.epoch, epoch.step, epoch.skipped_steps) == (0, 8, 0)
    assert epoch.loss is not None and epoch.grad_norm_max is not None
    numbers = next(one for one in found if isinstance(one, TrainingNumbers))
    assert {"loss", "step_time"} <= numbers.values.keys()
    validated = next(one for one in found if isinstance(one, Validated))
    assert validated.best and validated.values.keys() == {"loss"}
    spike = next(one for one in found if isinstance(one, ValidationSpike))
    assert spike.metric == "loss" and spike.value > 2 * spike.best and not spike.restored
    norms = [one.epoch for one in found if isinstance(one, GradientNormTotals)]
    assert norms == [*range(SETTINGS["epochs"]), None, SETTINGS["epochs"], None]
    band = next(one for one in found if isinstance(one, OutOfBand))
    assert (band.number, band.state, band.low) == ("grad_norm", "critical", None)
    (changed,) = (one for one in found if isinstance(one, SettingsChanged))
    assert changed.changes == ("train.optimizer.lr 0.01 -> 0.005",)
    failed = next(one for one in found if isinstance(one, HookFailed))
    assert (failed.hook, failed.error) == ("improved", "RuntimeError: no space")
    ended = next(one for one in found if isinstance(one, TrainingEnded))
    assert (ended.step, ended.interrupted) == (STEPS, False) and ended.best >= 0


def test_a_renamed_key_is_reported(make_rows: Any) -> None:
    data = EpochEnded(epoch=0, step=8, epoch_seconds=2.0).to_dict()
    data["seconds"] = data.pop("epoch_seconds")
    judge = Judge()
    judge.feed(make_rows(8), [Event(time=0.0, rank=0, step=5, kind="epoch", data=data)])
    (error,) = judge.errors
    assert error.data["where"] == "reading an event epoch"
    assert "the unknown key 'seconds'" in error.data["error"]


def test_numbers_have_the_names_of_the_task_and_nothing_but_numbers() -> None:
    numbers = TrainingNumbers(values={"cosine": 0.5})
    assert numbers.to_dict() == {"cosine": 0.5}
    assert Validated(values={"loss": 1.5}, best=True).to_dict() == {"loss": 1.5, "best": True}
    assert isinstance(read("numbers", {"cosine": "high"}), RecordError)
    assert isinstance(read("validation", {"loss": [1.5], "best": True}), RecordError)
