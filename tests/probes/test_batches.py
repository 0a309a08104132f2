"""Indices, datasets and their batches, joined by the ledger."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from holdfast.probes.batches import Batch, LoaderBatches, bad_columns, plain_index


@pytest.mark.parametrize(
    ("index", "plain"),
    [
        (3, 3),
        ("a", "a"),
        (torch.tensor(3), 3),
        (np.int64(3), 3),
        ((torch.tensor(1), "b"), (1, "b")),
        (slice(0, 2), "slice(0, 2, None)"),
        (torch.tensor([1, 2]), "tensor([1, 2])"),
    ],
)
def test_an_index_can_be_compared_and_written_down(index: Any, plain: Any) -> None:
    assert plain_index(index) == plain
    assert type(plain_index(index)) is type(plain)
    json.dumps(plain_index(index))


def handed_out(dataset: Any, drawn: list[Any]) -> Any:
    iterator = iter(DataLoader(dataset, 2))
    loader_batches = LoaderBatches()
    loader_batches.drawn[0] = drawn
    loader_batches.handed_out(iterator, torch.zeros(2), 2)
    return iterator, loader_batches.step()[0]


def test_a_batch_knows_its_dataset_and_plain_indices() -> None:
    data = TensorDataset(torch.zeros(4, 1))
    _, batch = handed_out(data, list(torch.tensor([3, 1])))
    assert batch.indices == [3, 1]
    assert batch.dataset() is data


def test_a_dataset_is_not_kept_alive_by_its_batch() -> None:
    listed = [0.0, 1.0, 2.0, 3.0]
    iterator, batch = handed_out(listed, [3, 1])
    assert batch.dataset() is listed
    del iterator
    assert batch.dataset() is None


def test_few_bad_columns_of_a_table_are_named() -> None:
    table = torch.ones(16, 12)
    assert bad_columns(table) == []
    table[3, 7] = table[9, 7] = float("nan")
    assert bad_columns(table) == [7]
    table[4, 2] = float("inf")
    assert bad_columns(table) == [2, 7]
    table[5] = float("nan")  # a whole row: its columns say nothing
    assert bad_columns(table) == []
    assert bad_columns(torch.full((16, 3, 8, 8), float("nan"))) == []
    batch = Batch((table.clone(), torch.zeros(16)), list(range(16)), -1, 0)
    batch.content[0][5] = 1.0
    assert batch.look() == 1
    assert batch.record()["columns"] == {"batch[0]": [2, 7]}
