"""Batches cut along their samples, and computed in pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from holdfast.actions.split_batch import Piece, Pieces, count
from holdfast.actions.split_batch.pieces import cut


def cpu() -> torch.device:
    return torch.device("cpu")


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Event:
    hits: Tensor
    time: float


class Loop:
    """Counts samples that went well; more than ``most`` at once do not fit."""

    def __init__(self, most: int) -> None:
        self.most, self.seen, self.undone = most, list[Any](), 0

    def compute(self, piece: Piece) -> None:
        if count(piece.content) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        self.seen.append((piece.batch, piece.begin, piece.end, piece.last))

    def undo(self, why: str) -> None:
        assert "out of memory" in why
        self.undone += 1
        self.seen.clear()


def test_what_is_nested_keeps_its_kind_and_what_is_no_sample_stays_whole() -> None:
    x = torch.arange(4)
    batch: Any = {
        "pair": Pair(x, x + 10),
        "event": Event(x + 20, 0.5),
        "names": ["a", "b", "c", "d"],
        "about": [{"id": 1}, {"id": 2}, {"id": 3}, {"id": 4}],
        "lengths": [1, 2, 3, 4],
        "boxes": [[1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3], [4, 4, 4, 4]],
        "size": [8, 8],
        "mean": torch.tensor(0.5),
        "weights": torch.ones(3),
        "list": [x, x],
    }
    first, second = cut(batch, 4, 0, 2), cut(batch, 4, 2, 4)
    assert count(first) == count(second) == 2
    assert isinstance(second["pair"], Pair) and second["pair"].y.tolist() == [12, 13]
    assert isinstance(second["event"], Event) and second["event"].hits.tolist() == [22, 23]
    assert second["event"].time == 0.5 and [one.tolist() for one in second["list"]] == [[2, 3]] * 2
    assert second["names"] == ["c", "d"] and second["about"] == [{"id": 3}, {"id": 4}]
    assert second["lengths"] == [3, 4] and second["boxes"] == [[3, 3, 3, 3], [4, 4, 4, 4]]
    for name in ("size", "mean", "weights"):
        assert second[name] is batch[name]
    assert first["pair"].x.data_ptr() == x.data_ptr()
    assert batch["names"] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("samples", "most", "sizes"), [(8, 3, [2, 2, 2, 2]), (7, 4, [3, 4])])
def test_every_sample_is_in_one_piece_and_the_size_is_remembered(
    samples: int, most: int, sizes: list[int]
) -> None:
    pieces, loop, batch = Pieces(), Loop(most), torch.arange(samples)
    made = pieces.run([batch], loop.compute, cpu, loop.undo)
    assert made is not None and made.pieces == len(sizes) and "memory" in made.error
    assert [end - begin for _, begin, end, _ in loop.seen] == sizes
    assert [last for *_, last in loop.seen] == [False] * (len(sizes) - 1) + [True]
    tries = loop.undone
    assert pieces.run([batch], loop.compute, cpu, loop.undo) is None and loop.undone == tries


def test_a_window_is_computed_again_in_smaller_pieces() -> None:
    pieces, loop, batches = Pieces(), Loop(8), [torch.arange(8), torch.arange(8)]
    pieces.run(batches[:1], loop.compute, cpu, loop.undo)
    loop.most = 4
    made = pieces.run(batches, loop.compute, cpu, loop.undo)
    assert made is not None and made.pieces == 2 and loop.undone == 1
    assert [batch for batch, *_ in loop.seen] == [0, 0, 1, 1]


def test_what_nobody_can_cut_and_one_sample_go_through() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    for batch, note in (((torch.ones(2, 3), packed), "PackedSequence"), (torch.ones(1, 3), "")):
        loop = Loop(0)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            Pieces().run([batch], loop.compute, cpu, loop.undo)
        assert note in "".join(getattr(caught.value, "__notes__", [""])) and not loop.undone
    text, loop = {"name": "x"}, Loop(0)
    Pieces().run([text], loop.compute, cpu, loop.undo)
    assert loop.seen == [(0, 0, 0, True)]
