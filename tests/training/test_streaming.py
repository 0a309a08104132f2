"""Streams: no sample twice, none skipped, equal shares, and the same again when resumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.errors import UsageError
from holdfast.training.data import streaming
from holdfast.training.data.loading import DataSettings, Loader, make_loader
from holdfast.training.data.streaming import Streamed
from holdfast.training.data.tensor_files import write_tensors
from holdfast.training.device import Place

CPU = torch.device("cpu")


class Counted:
    """An iterable without a length."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)


class Worker:
    def __init__(self, number: int, workers: int) -> None:
        self.id = number
        self.num_workers = workers


def shards_of(sizes: list[int], *, sized: bool) -> list[Any]:
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    lists = [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    return lists if sized else [Counted(*numbers) for numbers in lists]


def read(
    shards: list[Any], world: int, workers: int, *, batch: int, train: bool, **given: Any
) -> list[list[list[int]]]:
    """What each worker of each rank reads; workers are simulated."""
    found = []
    for rank in range(world):
        place = Place(CPU, rank, world, rank)
        stream = Streamed(shards, **given).joined(place, batch, seed=5, train=train)
        stream.set_epoch(2)
        found.append([])
        for number in range(workers):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(streaming, "get_worker_info", partial(Worker, number, workers))
                found[-1].append(list(stream))
    return found


sizes = {
    "sizes": st.lists(st.integers(0, 9), min_size=1, max_size=6),
    "world": st.integers(1, 3),
    "workers": st.integers(1, 3),
    "batch": st.integers(1, 4),
    "sized": st.booleans(),
    "chunk": st.none() | st.integers(1, 12),
}


@given(**sizes)
def test_a_validation_reads_every_sample_exactly_once(
    sizes: list[int], world: int, workers: int, batch: int, sized: bool, chunk: int | None
) -> None:
    shards = shards_of(sizes, sized=sized)
    found = read(shards, world, workers, batch=batch, train=False, chunk=chunk)
    flat = [sample for rank in found for worker in rank for sample in worker]
    assert sorted(flat) == list(range(sum(sizes)))


@given(**sizes)
def test_training_ranks_read_equal_numbers_of_other_samples(
    sizes: list[int], world: int, workers: int, batch: int, sized: bool, chunk: int | None
) -> None:
    total = sum(sizes)
    if total < world or not sized:
        return
    shards = shards_of(sizes, sized=True)
    found = read(shards, world, workers, batch=batch, train=True, chunk=chunk)
    ranks = [sum(map(len, rank)) for rank in found]
    assert ranks == [total // world] * world
    flat = [sample for rank in found for worker in rank for sample in worker]
    assert len(set(flat)) == len(flat)
    # Only the last worker that has any may end with a short batch.
    for rank in found:
        short = [len(worker) % batch for worker in rank if worker]
        assert not any(short[:-1])


@given(**sizes, length=st.integers(3, 40))
def test_an_asked_length_is_read_whatever_the_shards_hold(
    sizes: list[int],
    world: int,
    workers: int,
    batch: int,
    sized: bool,
    chunk: int | None,
    length: int,
) -> None:
    if not sized:
        sizes = [size + 9 for size in sizes]  # each reader needs a sample
    elif not sum(sizes):
        return
    shards = shards_of(sizes, sized=sized)
    found = read(shards, world, workers, batch=batch, train=True, length=length, chunk=chunk)
    assert [sum(map(len, rank)) for rank in found] == [length // world] * world
    if sized:
        often = Counter(sample for rank in found for worker in rank for sample in worker)
        # Nothing comes once more before all else has come as often, but for what is left over.
        assert max(often.values()) <= -(-length // sum(sizes))


def test_samples_and_shards_are_mixed_in_another_way_in_every_epoch() -> None:
    stream = Streamed(shards_of([10] * 10, sized=True), buffer=20)
    orders = []
    for epoch in (0, 1, 0):
        stream.set_epoch(epoch)
        orders.append(list(stream))
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(100))
    assert orders[0] != sorted(orders[0])


def test_no_more_samples_are_held_than_the_buffer_takes() -> None:
    out = 0
    most = 0

    def shard() -> Iterator[int]:
        nonlocal most
        for number in range(200):
            most = max(most, number + 1 - out)
            yield number

    for _ in Streamed([shard], buffer=16):
        out += 1
    assert out == 200 and most <= 17


def test_a_stream_that_is_not_shuffled_is_in_order() -> None:
    assert list(Streamed([[1, 2], Counted(3), lambda: iter([4])], shuffle=False)) == [1, 2, 3, 4]


def loaded(stream: Streamed, workers: int, **given: Any) -> Loader:
    place = given.pop("place", Place(CPU))
    settings = DataSettings(batch=4, **given)
    return make_loader(stream, settings, place, train=True, seed=3, workers=workers)


def test_the_setting_of_a_training_counts_where_the_stream_says_nothing() -> None:
    stream = Streamed(shards_of([8] * 4, sized=True))
    in_order = [one for batch in loaded(stream, 0, shuffle=False) for one in batch.tolist()]
    assert in_order == sorted(in_order) and len(in_order) == 32
    shuffled = [one for batch in loaded(stream, 0) for one in batch.tolist()]
    assert shuffled != in_order and sorted(shuffled) == in_order
    own = Streamed(shards_of([8] * 4, sized=True), shuffle=True)
    assert [one for batch in loaded(own, 0, shuffle=False) for one in batch.tolist()] != in_order


def test_workers_that_last_read_the_next_epoch_in_its_own_order() -> None:
    loader = loaded(Streamed(shards_of([8] * 4, sized=True)), workers=2)
    assert len(loader) == 8
    orders = []
    for epoch in (0, 1, 0):
        loader.set_epoch(epoch)
        orders.append([batch.tolist() for batch in loader])
    loader.close()
    assert orders[0] == orders[2] != orders[1]
    assert [len(order) for order in orders] == [8, 8, 8]
    assert sorted(number for batch in orders[1] for number in batch) == list(range(32))


def test_one_stream_may_be_trained_and_validated_on_side_by_side() -> None:
    stream = Streamed(shards_of([10, 10], sized=True))
    train, validation = (
        make_loader(stream, DataSettings(batch=4), Place(CPU), train=train, seed=0, workers=0)
        for train in (True, False)
    )
    train.set_epoch(3)
    assert [number for batch in validation for number in batch.tolist()] == list(range(20))
    mixed = [number for batch in train for number in batch.tolist()]
    assert mixed != sorted(mixed) == list(range(20))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_reads_on_where_it_was(tmp_path: Path, workers: int) -> None:
    had: dict[str, list[Any]] = {"whole": [], "cut": [], "again": []}
    for name, numbers in had.items():
        loader = loaded(Streamed(shards_of([8] * 4, sized=False), buffer=6), workers)
        net = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with holdfast.watch(
            net,
            optimizer,
            run_dir=tmp_path / name.replace("again", "cut"),
            resume=name == "again" or None,
            say=lambda line: None,
        ) as watch:
            for epoch in watch.epochs(2):
                loader.set_epoch(epoch)
                for batch in watch(loader):
                    watch.backward(net(batch[:, None] / 32).sum())
                    watch.step()
                    numbers.append(batch.tolist())
                    if name == "cut" and len(numbers) == 11:
                        watch.save()
                        break
        loader.close()
    assert len(had["again"]) == 5 and had["cut"] + had["again"] == had["whole"]


def test_folders_of_tensors_are_shards(tmp_path: Path) -> None:
    for number in range(3):
        part = torch.arange(number * 5, number * 5 + 5)
        write_tensors(tmp_path / str(number), {"x": part, "y": part.bfloat16()})
    folders = [tmp_path / str(number) for number in range(3)]
    samples = list(Streamed(folders, keys=["y"], form="dict"))
    assert sorted(int(sample["y"]) for sample in samples) == list(range(15))
    loader = loaded(Streamed(folders), workers=0, drop_last=True)
    batches = list(loader)
    assert len(batches) == len(loader) == 3
    assert all(torch.equal(x, y.long()) for x, y in batches)


def test_the_length_is_that_of_the_rank() -> None:
    stream = Streamed([[1, 2, 3], [4, 5]], length=20)
    assert len(stream.joined(Place(CPU, 0, 2), 4, seed=0, train=True)) == 10
    assert len(stream.joined(Place(CPU, 1, 2), 4, seed=0, train=False)) == 3
    with pytest.raises(TypeError, match="give it length="):
        len(Streamed([Counted(1)]))


@pytest.mark.parametrize(
    ("shards", "given", "text"),
    [
        ([], {}, "a stream of no shards"),
        ([[1]], {"length": 0}, "a stream of length 0"),
        ([[1]], {"buffer": 0}, "a buffer of 0"),
        ([[1]], {"chunk": 0}, "in chunks of 0"),
        ([iter([1])], {}, "can be read only once; give the function that makes it"),
        ([3], {}, "a int as a shard cannot be read"),
        (["nowhere"], {}, "no complete folder of tensors"),
    ],
)
def test_what_cannot_be_streamed_is_refused(shards: Any, given: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Streamed(shards, **given)


def test_ranks_do_not_train_on_a_stream_they_cannot_share_alike() -> None:
    with pytest.raises(UsageError, match=r"2 ranks cannot train alike.*Streamed\(length=\)"):
        loaded(Streamed([Counted(1, 2)]), 0, place=Place(CPU, 0, 2))
    with pytest.raises(UsageError, match="a stream of 1 samples for 2 ranks"):
        loaded(Streamed([[1]]), 0, place=Place(CPU, 0, 2))


def test_a_reader_without_a_sample_says_so_instead_of_reading_for_ever() -> None:
    stream = Streamed([Counted()], length=5)
    with pytest.raises(UsageError, match="reader 0 of 1 hold no sample"):
        list(stream)


def test_a_default_device_does_not_leak_into_streams_and_their_workers() -> None:
    torch.set_default_device("meta")
    try:
        loader = loaded(Streamed(shards_of([6, 6], sized=True)), workers=1)
        loader.set_epoch(1)
        assert sorted(number for batch in loader for number in batch.tolist()) == list(range(12))
        loader.close()
    finally:
        torch.set_default_device(None)
