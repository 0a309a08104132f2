"""The data of a run, opened as its settings say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from torch.utils.data import ConcatDataset, Dataset

from holdfast import HoldfastError

from ..model.model import Sizes
from ..run_settings import LiquidSettings
from ..settings import DataSettings
from . import vision
from .baselines import linear_accuracy, linear_control, unigram
from .robotics import make_robot, trajectories
from .sequences import TaskData, TaskSequence, tasks_of
from .tensor_rows import TensorRows
from .tokenizers import Tokenizer
from .windows import Windows, text_data

_KINDS = {
    "llm": ("domains", "permuted_vocabulary"),
    "vision": ("classes", "rotation", "permuted_pixels"),
    "robotics": ("dynamics",),
}
"""Sequences of tasks that go with a task; the first is what ``auto`` means."""
_MIX = 7919  # parts of the held-out set and of the training set are drawn from different seeds


class Opened(NamedTuple):
    """What is trained on and what is measured."""

    sizes: Sizes
    train: Dataset[Any]
    validation: Dataset[Any]
    tasks: Sequence[TaskData]
    """In their order; one where learning is not continual."""
    tokenizer: Tokenizer | None = None
    bytes_per_token: float = 1.0
    found: str = ""
    """For people."""

    def baselines(self) -> Mapping[str, float]:
        """What models without context or without depth reach on the first task."""
        first = self.tasks[0]
        if self.sizes.task == "llm":
            assert isinstance(first.validation, Windows)
            known = unigram(first.validation.file)
            return {
                "uniform": math.log(self.sizes.outputs),
                "unigram": known.entropy,
                "most_frequent": known.most_frequent,
            }
        train, held = first.train, first.validation
        assert isinstance(train, TensorRows)
        assert isinstance(held, TensorRows)
        if self.sizes.task == "vision":
            return {"linear": linear_accuracy(train, held)}
        linear = linear_control(train, held)
        return {"linear": linear.loss, "linear_r2": linear.r2}


def open_data(settings: LiquidSettings) -> Opened:
    """Texts, images or trajectories; several tasks where learning is continual."""
    tasks = _tasks(settings) if settings.continual.on else [_single(settings)]
    train, validation = tasks[0].train, tasks[0].validation
    if settings.continual.on:
        held = [task.validation for task in tasks]
        validation = ConcatDataset(held) if len(held) > 1 else held[0]
        if settings.continual.order == "joint":
            train = ConcatDataset([task.train for task in tasks])
        else:
            train = TaskSequence(tasks, settings.train.epochs or 1)
    bytes_per_token = getattr(tasks[0].validation, "bytes_per_token", 1.0)
    about = (tasks, tasks[0].tokenizer, bytes_per_token, _reported(tasks))
    return Opened(_sizes(settings, tasks), train, validation, *about)


def _single(settings: LiquidSettings) -> TaskData:
    data = settings.data
    if settings.task == "llm":
        text = text_data(data.sources, **_text(data))
        return TaskData(text.corpus.found, text.train, text.validation, tokenizer=text.tokenizer)
    if settings.task == "vision":
        made = vision.images_of(data.images, data.seed, data.samples)
        return TaskData(data.images, made.train, made.validation)
    robot, held = make_robot(data.robot), max(16, data.samples // 5)
    return TaskData(
        data.robot,
        trajectories(robot, data.samples, data.sequence_length, seed=data.seed),
        trajectories(robot, held, data.sequence_length, seed=data.seed + _MIX),
    )


def _tasks(settings: LiquidSettings) -> list[TaskData]:
    data, wanted = settings.data, settings.continual
    kinds = _KINDS[settings.task]
    kind = kinds[0] if wanted.tasks == "auto" else wanted.tasks
    if kind not in kinds:
        raise HoldfastError(
            f"continual.tasks is {kind}, task {settings.task}; choose {' or '.join(kinds)}"
        )
    options = {"images": data.images, "seed": data.seed}
    if kind == "domains":
        named = {} if data.sources == ("python",) else {"sources": data.sources}
        options = _text(data) | named
    elif kind == "permuted_vocabulary":
        options = _text(data) | {"sources": data.sources, "seed": data.seed}
    elif kind == "dynamics":
        options = {"robot": data.robot, "each": data.samples, "seed": data.seed}
        options["steps"] = data.sequence_length
    return tasks_of(kind, wanted.num_tasks, **options)


def _text(data: DataSettings) -> dict[str, Any]:
    return {
        "cache": data.folder,
        "length": data.sequence_length,
        "tokenizer": data.tokenizer,
        "vocabulary": data.vocab_size,
        "most_bytes": int(data.megabytes * 1e6),
    }


def _sizes(settings: LiquidSettings, tasks: Sequence[TaskData]) -> Sizes:
    first = tasks[0].train
    if settings.task == "llm":
        assert tasks[0].tokenizer is not None
        return Sizes("llm", tasks[0].tokenizer.size, tasks[0].tokenizer.size)
    assert isinstance(first, TensorRows)
    if settings.task == "vision":
        image, parts = first.tensors["image"], [cast(TensorRows, task.train) for task in tasks]
        classes = 1 + max(int(part.tensors["label"].max()) for part in parts)
        return Sizes("vision", image.shape[1], classes, image.shape[2])
    return Sizes("robotics", first.tensors["x"].shape[-1], first.tensors["y"].shape[-1])


def _reported(tasks: Sequence[TaskData]) -> str:
    if len(tasks) == 1:
        return f"{tasks[0].name}: {_count(tasks[0].train)} samples to train on"
    names = ", ".join(f"{task.name} ({_count(task.train)})" for task in tasks)
    return f"{len(tasks)} tasks: {names}"


def _count(data: Any) -> int:
    return len(data)
