"""The family on the trainer: resumed bit for bit, skipped exactly, plastic, and in tasks."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.training import Task
from holdfast_models.liquid.course import Course

EVERYTHING = (
    "model.mamba.on=true", "model.mamba.gate=true", "model.mamba.cross_attention=true",
    "plasticity.on=true", "plasticity.meta.on=true", "plasticity.interval=2",
    "continual.on=true", "continual.num_tasks=2", "continual.tasks=permuted_vocabulary",
    "continual.replay=true", "continual.importance_interval=3",
    "train.epochs=2", "train.steps=null", "data.megabytes=0.002", "data.sequence_length=24",
    "train.data.batch=8",
)  # fmt: skip


def weights(task: Task) -> dict[str, Tensor]:
    found = {name: one.detach().clone() for name, one in task.model.named_parameters()}
    return found | {name: one.clone() for name, one in task.model.named_buffers()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def course_of(task: Task) -> Course:
    course = task.state["course"]
    assert isinstance(course, Course)
    return course


@pytest.fixture(scope="module")
def trained() -> list[Task]:
    """The task of ``whole``, once a test has asked for it."""
    return []


@pytest.fixture
def whole(trained: list[Task], settings_of: Any, task_of: Any, fit: Any, tmp_path: Path) -> Task:
    """Everything at once, trained to its end: the same for all tests that only look at it."""
    if not trained:
        settings = settings_of(*EVERYTHING)
        task = task_of(settings)
        assert task.opened is not None
        (tmp_path / "facts").mkdir()
        task.opened(tmp_path / "facts")
        fit(task, settings, "whole")
        trained.append(task)
    return trained[0]


# ------------------------------------------------------------------ learning


@pytest.mark.parametrize("task", ["llm", "vision", "robotics"])
def test_13_13_every_task_trains_and_its_loss_falls(
    task: str, settings_of: Any, task_of: Any, fit: Any
) -> None:
    settings = settings_of(
        f"task={task}", "train.steps=60", "train.optimizer.lr=0.003", "train.clip=5",
        "train.data.batch=16", "model.dropout=0", "model.spikes.dropout=0",
    )  # fmt: skip
    made = task_of(settings)
    losses: list[float] = []

    def loss(net: Any, batch: Any) -> Any:
        found = plain(net, batch)
        if torch.is_grad_enabled():
            losses.append(float(found[0].detach()))
        return found

    plain = made.loss
    result = fit(dataclasses.replace(made, loss=loss), settings)
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    assert result.skipped == 0


@pytest.mark.parametrize(
    "phase", [*(pytest.param(p, marks=pytest.mark.slow) for p in (1, 2)), 3, 4]
)
def test_a_phase_of_the_specification_shortened(
    phase: int, settings_of: Any, task_of: Any, fit: Any
) -> None:
    """Its features together, in few dimensions and over few tokens: no step is lost."""
    tasks = {3: 2, 4: 3}.get(phase, 1)
    settings = settings_of(
        "train.steps=null", f"train.epochs={tasks}", f"continual.num_tasks={max(2, tasks)}",
        "data.megabytes=0.002", "data.sequence_length=24", "model.num_layers=2",
        "train.precision=fp32", preset=f"phase{phase}",
    )  # fmt: skip
    task = task_of(settings)
    before = weights(task)
    result = fit(task, settings)
    assert result.skipped == 0 and math.isfinite(result.validation["loss"])
    moved = {n for n, one in weights(task).items() if not torch.equal(one, before[n])}
    still = [n for n, _ in task.model.named_parameters() if n not in moved]
    # What fast weights are scaled by learns nothing where they are still 0.
    assert all(name.endswith("synapses.alpha") for name in still), still
    assert len(course_of(task).scores.names) == tasks
    assert any("fast" in name for name in moved) == (phase > 2)


def test_13_1_the_rate_is_never_0_and_every_parameter_moves(
    settings_of: Any, task_of: Any, fit: Any
) -> None:
    settings = settings_of(
        "train.schedule.name=cosine", "train.schedule.warmup=3", "model.mamba.on=true",
        "model.mamba.gate=true", "model.mamba.cross_attention=true", "model.mamba.feedback=true",
    )  # fmt: skip
    task = task_of(settings)
    before = {name: one.detach().clone() for name, one in task.model.named_parameters()}
    reported: list[float] = []
    plain = task.stepped
    assert plain is not None

    def stepped(step: int) -> None:
        plain(step)
        reported.append(float(course_of(task).reported()["weights_moved"]))

    fit(dataclasses.replace(task, stepped=stepped), settings)
    assert reported == [1.0] * 6
    still = [n for n, one in task.model.named_parameters() if torch.equal(one, before[n])]
    assert still == []


# ------------------------------------------------------------------ resuming


def test_a_resumed_run_is_the_undisturbed_one_bit_for_bit(
    whole: Task, settings_of: Any, task_of: Any, fit: Any
) -> None:
    settings = settings_of(*EVERYTHING)
    cut = task_of(settings)
    plain = cut.stepped
    assert plain is not None

    def stepped(step: int) -> None:
        plain(step)
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    fit(dataclasses.replace(cut, stepped=stepped), settings, "cut")
    again = task_of(settings)
    fit(again, settings, "cut", resume="auto")
    assert same(weights(again), weights(whole))
    # What is held of earlier tasks is the same too.
    one, other = course_of(again).state_dict(), course_of(whole).state_dict()
    assert _equal(one, other)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return one == other


# ------------------------------------------------------------------ steps that are skipped


def poisoned(task: Task, steps: set[int], value: float) -> Task:
    """The loss of these micro-batches, from 1, is not finite."""
    count = iter(range(1, 10**6))
    plain = task.loss

    def loss(net: Any, batch: Any) -> Any:
        found = plain(net, batch)
        if torch.is_grad_enabled() and next(count) in steps:
            return found[0] * value, found[1]
        return found

    return dataclasses.replace(task, loss=loss)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_three_losses_in_a_row_that_are_not_finite_change_nothing_and_it_goes_on(
    value: float, settings_of: Any, task_of: Any, fit: Any
) -> None:
    settings = settings_of(
        "plasticity.on=true", "plasticity.interval=1", "train.holdfast.guard.explain=false"
    )
    task = task_of(settings)
    seen: list[dict[str, Tensor]] = []
    plain = task.stepped
    assert plain is not None

    def stepped(step: int) -> None:
        plain(step)
        kept = weights(task)
        # The slope of the surrogate is annealed by the count of steps.
        seen.append({name: one for name, one in kept.items() if not name.endswith("slope")})

    bad = poisoned(dataclasses.replace(task, stepped=stepped), {2, 3, 4}, value)
    result = fit(bad, settings)
    assert result.skipped == 3
    assert all(same(seen[step], seen[0]) for step in (1, 2, 3))
    assert not same(seen[4], seen[0])
    assert all(one.isfinite().all() for one in weights(task).values())


# ------------------------------------------------------------------ plasticity


def test_13_8_fast_weights_change_and_only_plasticity_changes_them(
    settings_of: Any, task_of: Any, fit: Any
) -> None:
    on = settings_of("plasticity.on=true", "plasticity.interval=2", "train.steps=4")
    task = task_of(on)
    fit(task, on)
    fast = [one for name, one in task.model.named_buffers() if name.endswith("fast")]
    assert len(fast) == 2
    assert all(one.abs().sum() > 0 for one in fast)
    later = settings_of("plasticity.on=true", "plasticity.interval=50", "train.steps=4")
    still = task_of(later)
    fit(still, later, "still")
    assert all(not one.any() for n, one in still.model.named_buffers() if n.endswith("fast"))


# ------------------------------------------------------------------ tasks in turn


def test_13_10_tasks_differ_and_the_matrix_is_whole(whole: Task) -> None:
    course = course_of(whole)
    assert course.task == 2
    assert course.scores.after.isfinite().all()
    assert course.scores.untrained.isfinite().all()
    assert course.replay is not None
    assert set(course.replay.slots) == {0, 1}
    assert course.consolidation is not None
    assert course.consolidation.tasks == 2
    assert "forgetting" in course.scores.plain()


@pytest.mark.slow
def test_forgetting_is_less_with_consolidation_and_replay(
    settings_of: Any, task_of: Any, fit: Any
) -> None:
    """On the permuted vocabulary, where nothing else can explain it."""
    common = (
        "continual.on=true", "continual.num_tasks=2", "continual.tasks=permuted_vocabulary",
        "train.epochs=8", "train.steps=null", "train.optimizer.lr=0.01", "train.clip=5",
        "data.sources=arithmetic", "data.megabytes=0.004", "train.data.batch=8",
        "model.spikes.dropout=0", "model.dropout=0", "model.embedding_dropout=0",
    )  # fmt: skip
    found: dict[str, float] = {}
    for name, more in {
        "naive": ("continual.consolidation=false",),
        "held": ("continual.replay=true", "continual.consolidation_strength=100"),
    }.items():
        settings = settings_of(*common, *more)
        task = task_of(settings)
        fit(task, settings, name)
        found[name] = course_of(task).scores.plain()["forgetting"]
    assert found["held"] < 0.7 * found["naive"], found


def test_a_parameter_without_a_gradient_stops_the_run(
    settings_of: Any, task_of: Any, fit: Any
) -> None:
    from holdfast import HoldfastError

    settings = settings_of("model.mamba.on=true")
    task = task_of(settings)
    task.model.register_parameter("forgotten", torch.nn.Parameter(torch.zeros(3)))
    fresh = Course(settings, task.model, course_of(task)._tasks, task.train, 100)  # type: ignore[arg-type]
    task = dataclasses.replace(task, stepped=fresh.stepped, prepared=fresh.prepared)
    with pytest.raises(HoldfastError, match="forgotten: no finite gradient"):
        fit(task, settings)
