"""The calorimeter on the trainer: resumed bit for bit, in parts or whole, skipped, and drawn."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.training import Place, Task, Trainer, read_weights
from holdfast.training.loop.progress import Progress
from holdfast_models.xec import recipes
from holdfast_models.xec.artifacts import Artifacts

QUIET = Place(torch.device("cpu"), rank=1)
ENERGY = ["tasks.angle.enabled=false", "model.encoder_dim=64"]
PLAIN = [*ENERGY, "model.channel_dropout_rate=0", "train.data.shuffle=false",
         "train.optimizer.name=sgd", "train.schedule.name=constant"]  # fmt: skip
MakeTask = Callable[..., Task]


@pytest.fixture
def task_of(rows_of: Any) -> MakeTask:
    """A task of some settings on the first events, with the same weights each time."""

    def make(settings: Any, count: int = 8, validation: int = 0) -> Task:
        torch.manual_seed(0)
        held = rows_of(validation, 64) if validation else None
        return recipes.task_of(settings, QUIET, rows_of(count), held)

    return make


def fit(task: Task, settings: Any, folder: Path, **how: Any) -> Any:
    trainer = Trainer.of(task, settings.train, run_dir=folder, progress=Progress(), **how)
    return trainer.fit()


def weights(task: Task) -> dict[str, Tensor]:
    return {name: one.detach().clone() for name, one in task.model.named_parameters()}


def without_dropout(task: Task) -> Task:
    for one in task.model.modules():
        if isinstance(one, nn.Dropout):
            one.p = 0.0
    return task


# ------------------------------------------------------------------ resuming


@pytest.mark.parametrize("kind", ["reg", pytest.param("mae", marks=pytest.mark.slow)])
def test_10_a_resumed_run_is_the_undisturbed_one_bit_for_bit(
    kind: str, settings_of: Any, task_of: MakeTask, tmp_path: Path
) -> None:
    """With dropout, dropped sensors or hidden ones, an average and a schedule."""
    more = [
        "train.epochs=2", "train.steps=null", "train.data.batch=2", "train.average.decay=0.9",
        "train.schedule.name=cosine", "model.encoder_dim=64", "model.drop_path_rate=0.2",
    ]  # fmt: skip
    if kind == "reg":
        more.append("model.channel_dropout_rate=0.1")
    settings = settings_of(kind, *more)
    whole = task_of(settings, 4, 1)
    fit(whole, settings, tmp_path / "whole")
    cut = task_of(settings, 4, 1)

    def stepped(step: int) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    cut.stepped = stepped
    result = fit(cut, settings, tmp_path / "cut")
    assert result.interrupted and result.step == 3
    again = task_of(settings, 4, 1)
    result = fit(again, settings, tmp_path / "cut", resume=True)
    assert result.step == 4
    for averaged in (False, True):
        one, other = (
            read_weights(tmp_path / name, averaged=averaged, best=False)[0]
            for name in ("whole", "cut")
        )
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one), f"averaged: {averaged}"


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


# ------------------------------------------------------------------ parts of a batch


def test_19_8_four_parts_are_one_batch(settings_of: Any, task_of: MakeTask, tmp_path: Path) -> None:
    """Without a clip, which would hide a wrong length of the gradient.

    One step: normalising two channels multiplies what rounding has left by thousands in the next.
    """
    found: list[dict[str, Tensor]] = []
    for batch, parts in ((8, 1), (2, 4)):
        settings = settings_of(
            "reg", *PLAIN, f"train.data.batch={batch}", f"train.accumulate={parts}",
            "train.steps=1", "train.clip=null", "train.optimizer.lr=0.01",
        )  # fmt: skip
        task = without_dropout(task_of(settings, 16))
        fit(task, settings, tmp_path / f"{parts}")
        found.append(weights(task))
    for name, one in found[0].items():
        assert torch.allclose(one, found[1][name], rtol=0, atol=1e-6), name
    began = weights(task_of(settings_of("reg", *PLAIN), 16))
    moved = max(float((one - began[name]).abs().max()) for name, one in found[0].items())
    assert moved > 1e-3, "a thousand times what they may differ by"


# ------------------------------------------------------------------ bad events


@pytest.mark.parametrize("parts", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_17_9_an_event_without_a_number_is_left_out_with_its_whole_window(
    parts: int, settings_of: Any, task_of: MakeTask, tmp_path: Path
) -> None:
    """A truth that is no number: values of sensors that are none are dead sensors."""
    settings = settings_of(
        "reg", *PLAIN, "train.data.batch=2", f"train.accumulate={parts}", "train.steps=2",
        "train.holdfast.guard.replay=false", "train.holdfast.guard.explain=false",
    )  # fmt: skip
    task = without_dropout(task_of(settings, 4 * parts))
    rows: Any = task.train
    rows.events["energy"][0] = math.nan
    after = [weights(task)]
    task.stepped = lambda step: after.append(weights(task))
    result = fit(task, settings, tmp_path / "run")
    assert result.skipped == 1 and len(after) == 3
    assert _same(after[0], after[1]) and not _same(after[1], after[2])
    # What follows is what it would have been without the bad window.
    alone = without_dropout(task_of(settings, 4 * parts))
    alone.train.events = {  # type: ignore[attr-defined]
        name: one[2 * parts :] for name, one in rows.events.items()
    }
    one_step = settings_of("reg", *PLAIN, "train.data.batch=2", f"train.accumulate={parts}")
    fit(alone, one_step, tmp_path / "alone")
    for name, one in weights(alone).items():
        torch.testing.assert_close(one, after[2][name], msg=name)


def test_sensors_without_a_number_are_dead_ones_and_nothing_is_left_out(
    settings_of: Any, task_of: MakeTask, tmp_path: Path
) -> None:
    settings = settings_of("reg", *PLAIN, "train.data.batch=2", "train.steps=1")
    task = task_of(settings, 2)
    events = task.train.events  # type: ignore[attr-defined]
    events["npho"][0, :50], events["time"][1, 7] = math.nan, math.inf
    result = fit(task, settings, tmp_path / "run")
    assert result.skipped == 0
    assert all(one.isfinite().all() for one in weights(task).values())


# ------------------------------------------------------------------ artifacts


def test_17_8_pictures_are_made_when_it_improves_and_not_when_it_gets_worse(
    settings_of: Any, task_of: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses of four validations: better, far worse, a bit worse, best of all."""
    drawn: list[str] = []
    monkeypatch.setattr(Artifacts, "_draw", lambda self, folder, suffix: drawn.append(suffix))
    # A moment's work is always allowed, however short the run.
    monkeypatch.setattr("holdfast.training.loop.artifacts._SHARE", 1e9)
    monkeypatch.setattr("holdfast_models.xec.artifacts._EARLY", 0.0)
    settings = settings_of(
        "reg", *ENERGY, "train.data.batch=2", "train.steps=4", "train.validation.steps=1",
        "output.artifacts=true",
    )  # fmt: skip
    task = task_of(settings, 8, 2)
    measure, losses = task.measure, iter([2.0, 50.0, 3.0, 1.0, 1.0])
    assert measure is not None

    def staged(net: nn.Module, batch: Any) -> Any:
        return {**measure(net, batch), "loss": torch.tensor(next(losses))}

    task = dataclasses.replace(task, measure=staged)
    result = fit(task, settings, tmp_path / "run")
    assert result.best == 1.0 and result.best_step == 4 and result.hook_errors == 0
    assert drawn == ["_step1", "_step4", ""], "each new best, and at the end"
    monkeypatch.undo()
    monkeypatch.setattr(Artifacts, "_draw", lambda self, folder, suffix: drawn.append(suffix))
    assert task.improved is not None
    task.improved(tmp_path / "run", 5)
    assert len(drawn) == 3, "not in the first minutes of a run"
