"""Batches cut along their samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from holdfast.training.data.pieces import cut
from holdfast.training.data.transfer import count


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Event:
    hits: Tensor
    time: float


@pytest.mark.parametrize(("samples", "pieces"), [(8, 2), (8, 8), (7, 2), (7, 4), (3, 8), (1, 2)])
def test_every_sample_is_in_one_piece_and_in_order(samples: int, pieces: int) -> None:
    found = cut(torch.arange(samples), pieces)
    assert torch.cat(found).tolist() == list(range(samples))
    sizes = [len(one) for one in found]
    assert len(sizes) == min(samples, pieces) and max(sizes) - min(sizes) <= 1


def test_what_is_nested_keeps_its_kind_and_what_is_no_sample_stays_whole() -> None:
    x = torch.arange(4)
    batch: Any = {
        "pair": Pair(x, x + 10),
        "event": Event(x + 20, 0.5),
        "names": ["a", "b", "c", "d"],
        "about": [{"id": 1}, {"id": 2}, {"id": 3}, {"id": 4}],
        "size": [1, 2, 3, 4],
        "mean": torch.tensor(0.5),
        "weights": torch.ones(3),
        "list": [x, x],
    }
    first, second = cut(batch, 2)
    assert count(first) == count(second) == 2
    assert isinstance(second["pair"], Pair) and second["pair"].y.tolist() == [12, 13]
    assert isinstance(second["event"], Event) and second["event"].hits.tolist() == [22, 23]
    assert second["event"].time == 0.5 and [one.tolist() for one in second["list"]] == [[2, 3]] * 2
    assert second["names"] == ["c", "d"] and second["about"] == [{"id": 3}, {"id": 4}]
    for name in ("size", "mean", "weights"):
        assert second[name] is batch[name]
    assert first["pair"].x.data_ptr() == x.data_ptr()


def test_what_nobody_can_cut_is_one_piece() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    batch = (torch.ones(2, 3), packed)
    assert cut(batch, 2) == [batch]
    assert cut({"name": "x"}, 2) == [{"name": "x"}]
    empty = torch.ones(0, 3)
    assert cut(empty, 2)[0] is empty
