"""Indices, datasets and their batches, joined by the ledger."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from holdfast.probes.batches import LoaderLedger, plain_index


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
    ledger = LoaderLedger()
    ledger.drew(iterator, drawn)
    ledger.handed_out(iterator, ledger.upcoming(iterator), torch.zeros(2), 2)
    return iterator, ledger.step()[0]


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
