"""The lattice on the trainer: what the predecessor could not do, each as a small run."""

from __future__ import annotations

import itertools
import math
import os
import signal
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast import HoldfastError
from holdfast.run import LaneReader, Run
from holdfast.training import Place, Trainer, resolve
from holdfast.training.loop.progress import Progress
from holdfast_models.energy_flow.model.energy_flow import EnergyFlow
from holdfast_models.energy_flow.recipe import RECIPE, Sentences, build
from holdfast_models.energy_flow.run_settings import EnergyFlowSettings

CPU = Place(torch.device("cpu"), rank=1)  # one that prints nothing
SMALL = [
    "model.lattice.width=6", "model.lattice.height=6", "model.lattice.depth=4", "model.width=32",
    "model.carrier.hidden=16", "data.width=32", "data.count=300", "train.data.batch=16",
    "train.data.workers=0", "bridge.width=16", "bridge.heads=2", "bridge.layers=1",
    "bridge.decoder_layers=1", "train.device=cpu", "pictures=false",
]  # fmt: skip


def small(*more: str) -> EnergyFlowSettings:
    found = resolve(RECIPE, None, None, [*SMALL, *more], "none")
    assert isinstance(found, EnergyFlowSettings)
    return found


def fit(settings: EnergyFlowSettings, path: Path, task: Any = None, **how: Any) -> Any:
    torch.manual_seed(0)
    task = task or build(settings, CPU)
    trainer = Trainer.of(task, settings.train, run_dir=path, progress=Progress(), **how)
    return trainer.fit(), task


def weights(task: Any) -> list[float]:
    return torch.cat([p.detach().flatten() for p in task.model.parameters()]).tolist()


@pytest.mark.slow
def test_it_learns_the_task_and_beats_the_training_mean(tmp_path: Path) -> None:
    settings = small(
        "train.epochs=null", "train.steps=150", "bridge.on=false", "train.optimizer.lr=3e-3",
        "model.flows.spawn_most=0",
    )  # fmt: skip
    result, _ = fit(settings, tmp_path / "run")
    # 1 is the training mean, which has a cosine of about 0.45.
    assert result.validation["cosine"] > 0.6 and result.validation["fvu"] < 0.9
    assert result.skipped == 0


def test_every_parameter_learns_in_one_step_and_is_saved(tmp_path: Path) -> None:
    """Mappers, core and bridge are one module: the predecessor trained 6 % of its weights."""
    task = build(small(), CPU)
    assert isinstance(task.model, EnergyFlow) and isinstance(task.train, Sentences)
    batch = task.train.__getitems__(range(16)).batch
    for step in range(2):  # with heads at zero what lies before them has no gradient at first
        loss, _ = task.loss(task.model, batch)  # type: ignore[misc]
        loss.backward()
        if not step:
            torch.optim.SGD(task.model.parameters(), lr=0.5).step()
            task.model.zero_grad()
    silent = [n for n, p in task.model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not silent
    # What is no submodule has no name here, and would be neither trained nor saved.
    names = {n for n, _ in task.model.named_parameters()}
    assert {name.split(".")[0] for name in names} == {"input", "core", "output", "bridge"}
    assert names <= set(task.model.state_dict())


def test_memory_stays_where_it_is_over_batches_and_epochs(
    tmp_path: Path, living_memory: Any
) -> None:
    """Nothing that a forward pass made outlives its step, in the trainer either."""
    settings = small("train.epochs=2", "data.count=120", "model.flows.spawn_most=0")
    task = build(settings, CPU)
    clock, plain = task.stepped, task.loss
    assert clock is not None
    left: list[int] = []

    def loss(net: Any, batch: Any) -> Any:
        with living_memory:
            return plain(net, batch)

    def stepped(step: int) -> None:
        clock(step)
        left.append(living_memory.bytes)

    task.stepped, task.loss = stepped, loss
    result, _ = fit(settings, tmp_path / "run", task)
    assert len(left) == result.step > 8
    # The guard reads the losses of 32 steps together, 4 bytes each; a surface takes 2304.
    assert max(left) <= 4 * 32, left


def test_one_bad_embedding_is_one_skipped_step(tmp_path: Path) -> None:
    settings = small("train.epochs=1", "bridge.on=false")
    task = build(settings, CPU)
    pairs: Any = task.train
    pairs.tables.parts[0].x_NE[int(pairs._rows_N[3])] = math.nan
    result, task = fit(settings, tmp_path / "run", task)
    # The batch is looked at once more to find the line, which is left out as well.
    assert result.skipped in (1, 2) and "NUM005" in result.report
    assert all(map(math.isfinite, weights(task)))


def test_one_bad_batch_is_one_skipped_step_that_changes_nothing(tmp_path: Path) -> None:
    """Exactly one: the batch is not looked at once more, which would count as well."""
    more = ["train.holdfast.guard.replay=false", "train.holdfast.guard.explain=false"]
    task = build(small("train.epochs=1", "data.count=120", *more), CPU)
    pairs = task.train.pairs  # type: ignore[attr-defined]
    pairs.tables.parts[0].x_NE[int(pairs._rows_N[3])] = math.nan
    after = [weights(task)]
    clock = task.stepped
    assert clock is not None

    def stepped(step: int) -> None:
        clock(step)
        after.append(weights(task))

    task.stepped = stepped
    result, _ = fit(small("train.epochs=1", "data.count=120", *more), tmp_path / "run", task)
    assert result.skipped == 1 and result.step == len(after) - 1 > 3
    assert [one == other for one, other in itertools.pairwise(after)].count(True) == 1


def test_evaluation_is_without_noise_and_repeats(tmp_path: Path) -> None:
    task = build(small("bridge.on=false", "model.flows.noise_cells=1.0"), CPU)
    x_BE = torch.randn(4, 32)
    model = task.model.eval()
    with torch.no_grad():
        assert torch.equal(model(x_BE, step=1, seed=1).y_BE, model(x_BE, step=2, seed=9).y_BE)
        model.train()
        noisy = [model(x_BE, step=1, seed=seed).flows.p_N3 for seed in (1, 1, 2)]
    assert torch.equal(noisy[0], noisy[1]) and not torch.equal(noisy[0], noisy[2])


@pytest.mark.parametrize(
    "mode", ["compact", *(pytest.param(m, marks=pytest.mark.slow) for m in ("dense", "chunked"))]
)
def test_a_resumed_run_is_the_undisturbed_one(tmp_path: Path, mode: str) -> None:
    more = [f"model.flows.mode={mode}", "model.flows.spawn_threshold=0.2", "train.epochs=2"]
    settings = small(*more)
    _, whole = fit(settings, tmp_path / "whole")
    torch.manual_seed(0)
    cut = build(settings, CPU)
    clock = cut.stepped
    assert clock is not None

    def stepped(step: int) -> None:
        clock(step)
        if step == 9:
            os.kill(os.getpid(), signal.SIGINT)

    cut.stepped = stepped
    result, _ = fit(settings, tmp_path / "cut", cut)
    assert result.interrupted and result.step == 9
    _, again = fit(settings, tmp_path / "cut", resume=True)
    assert weights(again) == weights(whole)


def test_settings_that_do_not_fit_are_one_line() -> None:
    with pytest.raises(HoldfastError, match=r"model.width is 32, data.width 64"):
        small("data.width=64")
    with pytest.raises(HoldfastError, match=r"did you mean 'model.lattice.depth'"):
        small("model.lattice.dept=4")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_steps_without_a_bad_number(tmp_path: Path) -> None:
    """Anomaly mode is off; what the GRU is given and what it keeps stays bounded."""
    settings = small("train.epochs=null", "train.steps=1000", "model.flows.mode=compact")
    assert settings.train.anomaly == 0
    result, task = fit(settings, tmp_path / "run")
    assert result.step == 1000 and result.skipped == 0
    assert all(map(math.isfinite, weights(task)))
    events = LaneReader(Run.open(tmp_path / "run"), "r0").events()
    noted = [event.data for event in events if event.kind == "numbers"]
    assert len(noted) == 20
    assert all(0 < one["gru_input_absmax"] < 10 and one["guarded"] == 0 for one in noted)
    assert all(0 < one["gru_hidden_absmax"] < 1 for one in noted)


@pytest.mark.slow
def test_steps_after_the_first_take_as_long_as_each_other(tmp_path: Path) -> None:
    """Medians of ten, in CPU time of this thread: the machine may be busy with other things."""
    settings = small("train.epochs=null", "train.steps=80")
    task = build(settings, CPU)
    clock, times = task.stepped, []
    assert clock is not None

    def stepped(step: int) -> None:
        clock(step)
        times.append(time.thread_time())

    task.stepped = stepped
    fit(settings, tmp_path / "run", task)
    took = [after - before for before, after in itertools.pairwise(times[9:])]
    medians = [statistics.median(took[i : i + 10]) for i in range(0, 70, 10)]
    middle = statistics.median(medians)
    assert all(0.9 * middle <= one <= 1.1 * middle for one in medians), medians
    five = took[:5]
    assert max(five) <= 1.5 * min(five), five
