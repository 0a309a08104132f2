"""Sequences of tasks: tasks that differ, and a dataset that follows the epoch."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from holdfast import HoldfastError
from holdfast.training import collate
from holdfast_models.liquid.data.sequences import (
    CHANGES,
    TaskData,
    TaskSequence,
    epochs_of_tasks,
    permutation,
    tasks_of,
)
from holdfast_models.liquid.data.tensor_rows import TensorRows
from holdfast_models.liquid.data.tokenizers import ByteTokenizer


def test_domains_share_a_tokenizer_and_nothing_else(tmp_path: Path) -> None:
    tasks = tasks_of("domains", 5, cache=tmp_path, length=32, most_bytes=40_000)
    assert [task.name for task in tasks] == ["python", "topics", "arithmetic", "docs", "brackets"]
    assert len({task.tokenizer for task in tasks}) == 1
    files: list[Any] = [part.file for task in tasks for part in (task.train, task.validation)]  # pyright: ignore[reportAttributeAccessIssue]
    assert len({file.tokens.tobytes() for file in files}) == 10
    own = tmp_path / "own.txt"
    own.write_text("".join(f"a line of my own, number {n}\n" for n in range(400)))
    tasks = tasks_of("domains", 1, cache=tmp_path, length=32, sources=[own, "brackets"])
    assert tasks[0].name == str(own)


def test_permutations_are_fixed_differ_and_lead_back(tmp_path: Path) -> None:
    def make() -> list[TaskData]:
        options: Any = {"cache": tmp_path, "length": 32, "sources": ["topics"]}
        return tasks_of("permuted_vocabulary", 3, seed=4, most_bytes=40_000, **options)

    tasks, again = make(), make()
    tokenizer = ByteTokenizer()
    plain = tasks[0].train[5]["tokens"]
    assert bytes(plain.tolist()).decode()  # the first task is the text itself
    for number, (task, other) in enumerate(zip(tasks, again, strict=True)):
        order = permutation(tokenizer, number, 4)
        assert sorted(order) == list(range(258)) and order[256:].tolist() == [256, 257]
        for key in ("tokens", "targets"):
            found = task.train[5][key]
            assert torch.equal(found, other.train[5][key])
            assert np.array_equal(order.argsort()[found.numpy()], tasks[0].train[5][key].numpy())
    assert not torch.equal(tasks[1].train[5]["tokens"], tasks[2].train[5]["tokens"])
    assert not np.array_equal(permutation(tokenizer, 1, 4), permutation(tokenizer, 1, 5))


def test_vision_tasks() -> None:
    tasks = tasks_of("classes", 4, images="shapes")
    assert [task.classes for task in tasks] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    for task in tasks:
        for part in (task.train, task.validation):
            assert set(part.tensors["label"].tolist()) == {*(task.classes or ())}  # pyright: ignore[reportAttributeAccessIssue]
    for kind in ("rotation", "permuted_pixels"):
        tasks = tasks_of(kind, 3, images="shapes")
        first, *others = (task.train[0]["image"] for task in tasks)
        assert all(not torch.allclose(first, other, atol=0.1) for other in others)
        again = tasks_of(kind, 3, images="shapes")
        assert all(
            torch.equal(a.train[0]["image"], b.train[0]["image"])
            for a, b in zip(tasks, again, strict=True)
        )
        assert tasks[0].classes is None
    assert [task.name for task in tasks_of("rotation", 3, images="shapes")][
        2
    ] == "shapes at 180 degrees"


def test_dynamics_differ() -> None:
    tasks = tasks_of("dynamics", len(CHANGES), robot="arm", each=10, steps=8)
    assert len({task.train[0]["y"].numpy().tobytes() for task in tasks}) == len(CHANGES)
    assert (len(tasks[0].train), len(tasks[0].validation)) == (10, 2)  # pyright: ignore[reportArgumentType]
    assert tasks[1].name == "arm mass 1.6"
    assert not torch.equal(tasks[0].train[0]["x"], tasks[0].validation[0]["x"])


@pytest.mark.parametrize("epochs", range(1, 12))
@pytest.mark.parametrize("tasks", range(1, 5))
def test_epochs_of_tasks(epochs: int, tasks: int) -> None:
    found = epochs_of_tasks(epochs, tasks)
    assert len(found) == tasks and min(found) == max(1, epochs // tasks)
    assert sum(found) == max(epochs, tasks)
    assert found == sorted(found, reverse=True) and max(found) - min(found) <= 1


def counted(lengths: tuple[int, ...]) -> list[TaskData]:
    parts = [TensorRows(x=1000 * n + torch.arange(length)) for n, length in enumerate(lengths)]
    return [TaskData(f"{n}", part, part) for n, part in enumerate(parts)]


def test_a_sequence_follows_the_epoch() -> None:
    sequence = TaskSequence(counted((5, 3, 4)), 7)
    tasks = []
    for epoch in range(sequence.total + 2):
        sequence.set_epoch(epoch)
        values = [int(sequence[n]["x"]) for n in range(len(sequence))]
        assert len(values) == 5
        tasks.append(sequence.task)
        first = 1000 * sequence.task
        length = (5, 3, 4)[sequence.task]
        assert values == [first + n % length for n in range(5)]
        assert sequence.__getitems__([4, 0]).batch["x"].tolist() == [values[4], values[0]]
    assert tasks == [0, 0, 0, 1, 1, 2, 2, 2, 2]
    sequence.set_epoch(3)
    sent = pickle.loads(pickle.dumps(sequence))
    assert sent.task == 1 and len(sent) == 5
    with pytest.raises(IndexError):
        sequence[5]


def test_workers_that_outlive_an_epoch_follow_it() -> None:
    sequence = TaskSequence(counted((4, 4)), 2)
    loader = DataLoader(sequence, 4, num_workers=1, persistent_workers=True, collate_fn=collate)
    for epoch in (0, 1):
        sequence.set_epoch(epoch)
        (batch,) = loader
        assert batch["x"].tolist() == [1000 * epoch + n for n in range(4)]


def test_bad_tasks_are_one_line(tmp_path: Path) -> None:
    for kind, count, options, why in (
        ("dreams", 2, {}, "use one of domains, permuted_vocabulary"),
        ("rotation", 0, {}, "0 tasks were asked for; give 1 or more"),
        ("classes", 5, {"images": "shapes"}, "give 1 to 4, as there are 4 pairs of classes"),
        ("classes", 2, {"images": "cats"}, "use digits or shapes"),
        ("dynamics", 9, {}, "give 1 to 6"),
        ("domains", 6, {"cache": tmp_path, "length": 32}, "give 1 to 5, as there are 5 sources"),
    ):
        with pytest.raises(HoldfastError, match=why):
            tasks_of(kind, count, **options)
    with pytest.raises(HoldfastError, match="0 tasks"):
        TaskSequence([], 3)
