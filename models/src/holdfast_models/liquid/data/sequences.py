"""Tasks one after the other for continual learning, and the dataset that goes through them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from holdfast import HoldfastError

from .corpora import CORPORA, MOST_BYTES, corpus
from .robotics import make_robot, trajectories
from .token_files import split, token_files
from .tokenizers import Tokenizer, make_tokenizer
from .vision import images_of, of_classes, permuted, rotated
from .windows import Windows, text_data

CHANGES: tuple[Mapping[str, float], ...] = (
    {}, {"mass": 1.6}, {"length": 0.6}, {"gain": 0.7}, {"friction": 0.5}, {"length": 1.4},
)  # fmt: skip
"""Of a robot, one for each task: its teacher knows them, the model does not."""


@dataclass(frozen=True)
class TaskData:
    """One task of a sequence; ``classes`` are the only ones of it, where a head is to be masked."""

    name: str
    train: Dataset[Any]
    validation: Dataset[Any]
    classes: tuple[int, ...] | None = None
    tokenizer: Tokenizer | None = None


def domains(
    count: int,
    *,
    cache: str | os.PathLike[str],
    length: int,
    sources: Sequence[str | os.PathLike[str]] = tuple(CORPORA),
    tokenizer: str = "byte",
    vocabulary: int | None = None,
    most_bytes: int = MOST_BYTES,
) -> list[TaskData]:
    """Texts of different kinds, one source a task and one tokenizer for all; see ``text_data``."""
    _check_count(count, len(sources), "sources")
    found = [corpus(source, most_bytes=most_bytes) for source in sources[:count]]
    texts = [text for one in found for _, text in split(one.documents)[0]]
    made = make_tokenizer(tokenizer, vocabulary=vocabulary, texts=texts, cache=cache)
    tasks: list[TaskData] = []
    for one in found:
        train, validation = (Windows(file, length) for file in token_files(one, made, cache))
        tasks.append(TaskData(one.name, train, validation, tokenizer=made))
    return tasks


def permuted_vocabulary(
    count: int,
    *,
    sources: Sequence[str | os.PathLike[str]] = ("python",),
    seed: int = 0,
    **options: Any,
) -> list[TaskData]:
    """The same text, its tokens renamed in each task but the first; options as of ``text_data``."""
    data = text_data(sources, **options)
    tasks: list[TaskData] = []
    for task in range(count):
        order = permutation(data.tokenizer, task, seed)
        train, validation = (
            Windows(part.file, part.length, permutation=order)
            for part in (data.train, data.validation)
        )
        tasks.append(TaskData(f"permutation {task}", train, validation, tokenizer=data.tokenizer))
    return tasks


def permutation(tokenizer: Tokenizer, task: int, seed: int = 0) -> np.ndarray:
    """New numbers of all tokens but the special ones; ``argsort`` of it leads back."""
    order = np.arange(tokenizer.size)
    if task:
        np.random.default_rng([seed, task]).shuffle(order[: tokenizer.words])
    return order


def vision_tasks(kind: str, count: int, *, images: str = "digits", seed: int = 0) -> list[TaskData]:
    """Images of other classes, turned further (to half a turn) or with pixels in another order."""
    data = images_of(images, seed)
    if kind == "classes":
        _check_count(count, data.classes // 2, f"pairs of classes of {images}")
    groups = [tuple(map(int, part)) for part in np.array_split(np.arange(data.classes), count)]
    pixels = data.train.tensors["image"][0, 0].numel()
    tasks: list[TaskData] = []
    for task in range(count):
        classes = groups[task] if kind == "classes" else None
        if classes is not None:
            name = f"{images} {', '.join(map(str, classes))}"
            change = partial(of_classes, classes=classes)
        elif kind == "rotation":
            angle = 180 * task / max(count - 1, 1)
            name, change = f"{images} at {angle:.0f} degrees", partial(rotated, degrees=angle)
        else:
            generator = torch.Generator().manual_seed(1000 * seed + task)
            order = torch.randperm(pixels, generator=generator) if task else torch.arange(pixels)
            name, change = f"{images}, pixel order {task}", partial(permuted, order=order)
        tasks.append(TaskData(name, change(data.train), change(data.validation), classes))
    return tasks


def dynamics(
    count: int, *, robot: str = "pendulum", each: int = 512, steps: int = 64, seed: int = 0
) -> list[TaskData]:
    """A robot with other ``CHANGES`` in each task: ``each`` trajectories, and a fifth held out."""
    _check_count(count, len(CHANGES), "changes of a robot")
    tasks: list[TaskData] = []
    for change in CHANGES[:count]:
        made = make_robot(robot, **change)
        name = " ".join([robot, *(f"{key} {value}" for key, value in change.items())])
        train = trajectories(made, each, steps, seed=2 * seed)
        validation = trajectories(made, max(each // 5, 1), steps, seed=2 * seed + 1)
        tasks.append(TaskData(name, train, validation))
    return tasks


KINDS: Mapping[str, Callable[..., list[TaskData]]] = {
    "domains": domains,
    "permuted_vocabulary": permuted_vocabulary,
    **{kind: partial(vision_tasks, kind) for kind in ("classes", "rotation", "permuted_pixels")},
    "dynamics": dynamics,
}


def tasks_of(kind: str, count: int, **options: Any) -> list[TaskData]:
    """``count`` tasks of one of ``KINDS``, with the options of its function."""
    if kind not in KINDS:
        raise HoldfastError(f"tasks of kind {kind!r} are not known; use one of {', '.join(KINDS)}")
    _check_count(count)
    return KINDS[kind](count, **options)


def epochs_of_tasks(epochs: int, tasks: int) -> list[int]:
    """Epochs of each task: alike, at least one, and what is left over goes to the first ones.

    >>> epochs_of_tasks(7, 3), epochs_of_tasks(2, 3)
    ([3, 2, 2], [1, 1, 1])
    """
    rest = epochs % tasks if epochs > tasks else 0
    return [max(1, epochs // tasks) + (task < rest) for task in range(tasks)]


class TaskSequence(Dataset[Any]):
    """The training data of the task whose turn it is; ``set_epoch`` says which.

    Every epoch is as long as the longest task, so that loaders and schedules can count on it:
    shorter ones begin again from their first sample. The whole sequence takes ``total`` epochs:
    more than ``epochs`` where there are more tasks than that.
    """

    def __init__(self, tasks: Sequence[TaskData], epochs: int) -> None:
        _check_count(len(tasks))
        self.tasks = tuple(tasks)
        self.ends = tuple(accumulate(epochs_of_tasks(epochs, len(tasks))))
        self.total = self.ends[-1]
        self._parts: list[Any] = [task.train for task in tasks]
        self._length = max(map(len, self._parts))
        # Shared: workers that outlive an epoch see the next one, too.
        self._epoch = torch.zeros(1, dtype=torch.int64, device="cpu").share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Go to the task of this epoch, counted from 0."""
        self._epoch.fill_(int(epoch))

    def task_of(self, epoch: int) -> int:
        """The number of the task of an epoch; after the end that of the last one."""
        return min(sum(epoch >= end for end in self.ends), len(self.tasks) - 1)

    @property
    def task(self) -> int:
        """The number of the task whose turn it is."""
        return self.task_of(int(self._epoch))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self._length:
            raise IndexError(f"sample {index} of {self._length}")
        return self._parts[self.task][index % len(self._parts[self.task])]

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """A whole batch at once, of one task."""
        part = self._parts[self.task]
        return part.__getitems__([index % len(part) for index in indices])


def _check_count(count: int, most: int | None = None, what: str = "") -> None:
    if count < 1 or (most is not None and count > most):
        there = f"1 to {most}, as there are {most} {what}" if most is not None else "1 or more"
        raise HoldfastError(f"{count} tasks were asked for; give {there}")
