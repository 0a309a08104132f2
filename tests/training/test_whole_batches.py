"""Streams that give whole batches: gathered at once, every sample once, alike on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Subset, TensorDataset

import holdfast
from holdfast.errors import SettingsError, UsageError
from holdfast.training.data import streaming
from holdfast.training.data.gathered import Gathered
from holdfast.training.data.loading import DataSettings, Loader, make_loader
from holdfast.training.data.streaming import Streamed
from holdfast.training.data.tensor_files import write_tensors
from holdfast.training.device import Place

CPU = torch.device("cpu")


class File:
    """A file of compressed blocks, read in ranges only."""

    def __init__(self, first: int, count: int, boundaries: Sequence[int] | None = None) -> None:
        self.first, self.count = first, count
        self.reads: list[tuple[int, int]] = []
        if boundaries is not None:
            self.boundaries = boundaries

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("a batch is made of ranges")

    def __getitems__(self, indices: Sequence[int]) -> Gathered:
        first, last = indices[0], indices[-1] + 1
        self.reads.append((first, last))
        numbers = torch.arange(self.first + first, self.first + last)
        rows = {"number": numbers, "x": numbers[:, None].expand(-1, 3) / 2, "even": ~numbers & 1}
        return Gathered({**rows, "even": rows["even"].bool()}, len(numbers))


class Worker:
    def __init__(self, number: int, workers: int) -> None:
        self.id = number
        self.num_workers = workers


def files(sizes: Sequence[int], boundaries: Sequence[int] | None = None) -> list[File]:
    return [File(sum(sizes[:i]), size, boundaries) for i, size in enumerate(sizes)]


def read(shards: Any, world: int, workers: int, **how: Any) -> list[list[list[list[int]]]]:
    """The batches of each worker of each rank; workers are simulated."""
    batch, chunk, drop_last = how.pop("batch"), how.pop("chunk"), how.pop("drop_last", False)
    found = []
    for rank in range(world):
        stream = Streamed(shards).joined(Place(CPU, rank, world), batch, seed=5, chunk=chunk, **how)
        stream = stream.in_batches(drop_last=drop_last)
        stream.set_epoch(2)
        found.append([])
        for number in range(workers):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(streaming, "get_worker_info", partial(Worker, number, workers))
                found[-1].append([one.batch["number"].tolist() for one in stream])
        assert len(stream) == sum(map(len, found[-1]))
    return found


cases = {
    "sizes": st.lists(st.integers(0, 30), min_size=1, max_size=4),
    "world": st.integers(1, 3),
    "workers": st.integers(1, 3),
    "batch": st.integers(1, 9),
    "chunk": st.integers(1, 40),
    "boundaries": st.none() | st.lists(st.integers(0, 30), max_size=6).map(sorted),
}


@given(**cases)
def test_a_validation_has_every_sample_once_and_in_order(
    sizes: list[int], world: int, workers: int, batch: int, chunk: int, boundaries: Any
) -> None:
    shards = files(sizes, boundaries)
    found = read(shards, world, workers, batch=batch, chunk=chunk, train=False)
    flat = [number for rank in found for worker in rank for one in worker for number in one]
    assert flat == list(range(sum(sizes)))
    assert all(last - first <= chunk for shard in shards for first, last in shard.reads)


@given(**cases, drop_last=st.booleans())
def test_training_ranks_have_equal_numbers_of_batches_of_other_samples(
    sizes: list[int],
    world: int,
    workers: int,
    batch: int,
    chunk: int,
    boundaries: Any,
    drop_last: bool,
) -> None:
    if sum(sizes) < world:
        return
    shards = files(sizes, boundaries)
    how = {"batch": batch, "chunk": chunk, "train": True, "drop_last": drop_last}
    found = read(shards, world, workers, **how)
    assert found == read(shards, world, workers, **how)
    share = sum(sizes) // world
    for rank in found:
        lengths = sorted((len(one) for worker in rank for one in worker), reverse=True)
        short = [share % batch] if share % batch and not drop_last else []
        assert lengths == [batch] * (share // batch) + short
    flat = [number for rank in found for worker in rank for one in worker for number in one]
    assert len(set(flat)) == len(flat)


def loaded(stream: Streamed, *, train: bool = True, workers: int = 0, **more: Any) -> Loader:
    collate_fn = more.pop("collate_fn", None)
    settings = DataSettings(**{"batch": 8, "chunk": 16, **more})
    place = Place(CPU)
    return make_loader(
        stream, settings, place, train=train, seed=1, workers=workers, collate_fn=collate_fn
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_hands_on_batches_as_they_were_gathered(workers: int) -> None:
    loader = loaded(Streamed(files([50, 33])), workers=workers, drop_last=True)
    assert loader.batch_size is None and len(loader) == 10
    orders: list[list[list[int]]] = []
    for epoch in (0, 1, 0):
        loader.set_epoch(epoch)
        batches = list(loader)
        for batch in batches:
            assert batch["x"].shape == (8, 3) and batch["x"].dtype is torch.float32
            assert torch.equal(batch["x"][:, 0] * 2, batch["number"].float())
            assert batch["even"].dtype is torch.bool
            assert torch.equal(batch["even"], batch["number"] % 2 == 0)
        orders.append([batch["number"].tolist() for batch in batches])
    loader.close()
    assert orders[0] == orders[2] != orders[1]
    assert len({number for one in orders[0] for number in one}) == 80


def test_ranges_begin_where_compressed_blocks_do() -> None:
    (shard,) = files([100], boundaries=[0, 12, 24, 36, 60, 72, 84, 96])
    list(loaded(Streamed([shard]), chunk=20))
    reads = sorted(shard.reads)
    # 36 to 60 is larger than a chunk: it is cut, and the next range begins with a block again.
    assert reads == [(0, 12), (12, 24), (24, 36), (36, 56), (56, 72), (72, 84), (84, 100)]


def test_shards_that_give_lists_are_collated(tmp_path: Path) -> None:
    whole = TensorDataset(torch.arange(20), torch.ones(20))
    loader = loaded(Streamed([Subset(whole, range(12)), Subset(whole, range(12, 20))]))
    assert loader.batch_size is None
    batches = list(loader)
    assert [len(x) for x, _ in batches] == [8, 8, 4]
    assert sorted(int(n) for x, _ in batches for n in x) == list(range(20))
    # Beside a shard of gathered tensors as well.
    write_tensors(tmp_path, {"n": torch.arange(20, 30), "one": torch.ones(10)})
    mixed = list(loaded(Streamed([Subset(whole, range(20)), tmp_path])))
    assert sorted(int(n) for x, _ in mixed for n in x) == list(range(30))


def test_a_collate_function_of_the_users_own_is_given_samples() -> None:
    given: list[Any] = []

    def own(samples: Sequence[Any]) -> int:
        given.append(samples)
        return sum(int(sample["number"]) for sample in samples)

    assert sum(loaded(Streamed(files([20])), collate_fn=own)) == sum(range(20))
    assert [len(samples) for samples in given] == [8, 8, 4]


def test_shards_of_other_kinds_are_joined_or_refused(tmp_path: Path) -> None:
    def stream(second: dict[str, torch.Tensor]) -> Streamed:
        write_tensors(tmp_path / "0", {"x": torch.zeros(9, 2)}, overwrite=True)
        write_tensors(tmp_path / "1", second, overwrite=True)
        return Streamed([tmp_path / "0", tmp_path / "1"], form="dict")

    wide = list(loaded(stream({"x": torch.ones(9, 2).double()})))
    assert sum(float(batch["x"].sum()) for batch in wide) == 18
    with pytest.raises(UsageError, match=r"other shapes: x of \(\d,\) and \(\d,\)"):
        list(loaded(stream({"x": torch.ones(9, 3)})))
    with pytest.raises(UsageError, match="hold other tensors"):
        list(loaded(stream({"y": torch.ones(9, 2)})))


def test_a_stream_that_makes_no_batch_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"7 samples make no batch of data.batch=8.*drop_last"):
        loaded(Streamed(files([7])), drop_last=True)


def test_without_chunks_samples_come_one_by_one() -> None:
    stream = Streamed([TensorDataset(torch.arange(9))])
    assert loaded(stream).batch_size == 8  # a TensorDataset has no __getitems__
    assert loaded(Streamed(files([9])), chunk=None).batch_size == 8


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_goes_on_with_the_next_batch(tmp_path: Path, workers: int) -> None:
    had: dict[str, list[Any]] = {"whole": [], "cut": [], "again": []}
    for name, numbers in had.items():
        loader = loaded(Streamed(files([40, 27])), workers=workers, chunk=11)
        net = torch.nn.Linear(3, 1)
        with holdfast.watch(
            net,
            torch.optim.SGD(net.parameters(), lr=0.1),
            run_dir=tmp_path / name.replace("again", "cut"),
            resume=name == "again" or None,
            say=lambda line: None,
        ) as watch:
            for epoch in watch.epochs(2):
                loader.set_epoch(epoch)
                for batch in watch(loader):
                    watch.backward(net(batch["x"] / 60).square().mean())
                    watch.step()
                    numbers.append(batch["number"].tolist())
                    if name == "cut" and len(numbers) == 13:
                        watch.save()
                        break
        loader.close()
    assert len(had["whole"]) == 18 and len(had["again"]) == 5
    assert had["cut"] + had["again"] == had["whole"]
