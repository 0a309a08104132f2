"""Data larger than memory: read in chunks, all of it once, never more than two chunks held."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from holdfast.config import from_dict
from holdfast.training.data.gathered import Gathered
from holdfast.training.data.loading import DataSettings, make_loader
from holdfast.training.data.sampling import EpochBatches
from holdfast.training.data.streaming import Streamed
from holdfast.training.data.tensor_files import MappedTensors, write_tensors
from holdfast.training.device import Place
from holdfast.training.loop.progress import Progress
from holdfast.training.settings import TrainSettings
from holdfast.training.trainer import Trainer

CPU = Place(torch.device("cpu"))
CHUNK = 10


class File:
    """A shard that is decoded on reading; knows which of its chunks somebody still holds."""

    def __init__(self, first: int, count: int, held: weakref.WeakValueDictionary[int, Tensor]):
        self.first, self.count, self._held = first, count, held
        self.reads: list[range] = []
        self.most = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("a chunk is read at once")

    def __getitems__(self, indices: Sequence[int]) -> Gathered:
        asked = range(indices[0], indices[-1] + 1)
        assert list(indices) == list(asked)
        self.reads.append(asked)
        block = torch.arange(self.first + asked.start, self.first + asked.stop)
        self._held[len(self.reads) + 1000 * self.first] = block
        self.most = max(self.most, sum(map(len, self._held.values())))
        return Gathered((block,), len(block))


def files(*counts: int) -> list[File]:
    held: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
    return [File(sum(counts[:i]), count, held) for i, count in enumerate(counts)]


def numbers(loader: Any) -> list[int]:
    return [int(number) for (batch,) in loader for number in batch]


def loader_of(data: Any, epoch: int = 0, **given: Any) -> Any:
    settings = DataSettings(batch=4, **given)
    loader = make_loader(data, settings, CPU, train=True, seed=7, workers=0)
    loader.set_epoch(epoch)
    return loader


def test_a_stream_holds_two_chunks_at_most_and_reads_each_at_once() -> None:
    shards = files(95, 42)
    found = numbers(loader_of(Streamed(shards), chunk=CHUNK))
    assert sorted(found) == list(range(137))
    assert max(shard.most for shard in shards) <= 2 * CHUNK
    reads = [read for shard in shards for read in shard.reads]
    assert len(reads) == 10 + 5  # each range once
    assert all(len(read) == CHUNK for read in reads if read.stop not in (95, 42))


def test_samples_are_mixed_within_and_across_chunks_in_another_way_each_epoch() -> None:
    first, other, again = (
        numbers(loader_of(Streamed(files(100)), epoch, chunk=CHUNK)) for epoch in (0, 1, 0)
    )
    assert first == again != other
    windows = [first[at : at + 2 * CHUNK] for at in range(0, 100, 2 * CHUNK)]
    for window in windows:
        assert len({number // CHUNK for number in window}) == 2  # of two chunks
        assert window != sorted(window)
        half = [number // CHUNK for number in window[:CHUNK]]
        assert len(set(half)) == 2  # which are mixed with each other
    assert [min(window) for window in windows] != sorted(min(window) for window in windows)


def test_one_large_file_feeds_ranks_with_other_ranges_each_epoch() -> None:
    def of(rank: int, epoch: int) -> set[int]:
        stream = Streamed(files(80), chunk=CHUNK)
        own = stream.joined(Place(torch.device("cpu"), rank, 2), 4, seed=1, train=True)
        own.set_epoch(epoch)
        return {int(number) for (number,) in own}

    assert of(0, 0) | of(1, 0) == set(range(80)) and not of(0, 0) & of(1, 0)
    assert of(0, 0) != of(0, 1)


def test_a_validation_reads_chunks_in_order() -> None:
    shards = files(25)
    settings = DataSettings(batch=4, chunk=CHUNK)
    loader = make_loader(Streamed(shards), settings, CPU, train=False, seed=0, workers=0)
    assert numbers(loader) == list(range(25))
    assert shards[0].most <= CHUNK


def test_the_setting_goes_before_the_stream_and_both_have_to_fit_into_memory() -> None:
    def chunk(stream_chunk: int | None, **given: Any) -> int | None:
        shard: Any = torch.zeros(100, 25)  # 100 bytes each
        return loader_of(Streamed([shard], chunk=stream_chunk), **given).dataset.chunk

    assert chunk(None) is None and chunk(8) == 8
    assert chunk(8, chunk=16) == 16
    assert chunk(8, chunk_mb=0.0005) == 5 and chunk(4, chunk_mb=0.0005) == 4
    assert chunk(None, chunk_mb=0.0005) == 5


@pytest.mark.parametrize("length", [100, 103])
def test_a_dataset_with_an_index_is_gone_through_two_chunks_at_a_time(length: int) -> None:
    batches = list(EpochBatches(length, 4, CPU, shuffle=True, seed=0, chunk=CHUNK))
    flat = [index for batch in batches for index in batch]
    assert sorted(flat) == list(range(length))
    live = [{index // CHUNK for index in batch} for batch in batches]
    assert all(len(chunks) <= 4 for chunks in live)
    # A chunk is done with before others are begun: it is live in a stretch of two chunks.
    for chunk in range(-(-length // CHUNK)):
        where = [number for number, chunks in enumerate(live) if chunk in chunks]
        assert where[-1] - where[0] <= 2 * CHUNK // 4
    assert flat != sorted(flat)
    # Not only samples within two chunks that follow each other: the chunks are shuffled as well.
    order = list(dict.fromkeys(index // CHUNK for index in flat))
    pairs = [sorted(order[at : at + 2]) for at in range(0, len(order), 2)]
    assert [chunk for pair in pairs for chunk in pair] != sorted(order)


def test_mapped_tensors_are_loaded_in_chunks(tmp_path: Path) -> None:
    write_tensors(tmp_path, {"x": torch.arange(60)})
    first = numbers(loader_of(MappedTensors(tmp_path), chunk=CHUNK))
    assert sorted(first) == list(range(60))
    assert len({number // CHUNK for number in first[: 2 * CHUNK]}) == 2


def data_of(kind: str, tmp_path: Path) -> Dataset[Any]:
    x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
    if kind == "index":
        return TensorDataset(x)
    for number in range(2):
        write_tensors(tmp_path / str(number), {"x": x[number::2]}, overwrite=True)
    return Streamed([tmp_path / "0", tmp_path / "1"])


@pytest.mark.parametrize("kind", ["index", "stream"])
def test_a_resumed_run_goes_on_within_a_chunk(kind: str, tmp_path: Path) -> None:
    def fit(folder: str, steps: int, resume: bool = False) -> tuple[list[float], list[list[float]]]:
        torch.manual_seed(0)
        net, seen = nn.Linear(3, 1), list[list[float]]()

        def loss(model: nn.Module, batch: tuple[Tensor]) -> Tensor:
            seen.append(batch[0][:, 0].tolist())
            return model(batch[0]).square().mean()

        data = {"batch": 4, "workers": 0, "chunk": CHUNK}
        given = {"device": "cpu", "epochs": 3, "steps": steps, "data": data}
        settings = from_dict(given, kind=TrainSettings)
        Trainer(
            net,
            loss,
            data_of(kind, tmp_path / "data"),
            settings=settings,
            run_dir=tmp_path / folder,
            resume=resume or None,
            progress=Progress(),
        ).fit()
        return torch.cat([p.detach().flatten() for p in net.parameters()]).tolist(), seen

    whole, all_seen = fit("whole", 60)
    _, before = fit("parts", 26)  # amid the second epoch, amid a chunk
    parts, after = fit("parts", 60, resume=True)
    assert parts == whole
    assert before + after == all_seen


def test_the_memory_of_chunks_is_reported_before_it_is_taken(tmp_path: Path) -> None:
    lines: list[str] = []

    class Reported(Progress):
        def say(self, line: str) -> None:
            lines.append(line)

    data = {"batch": 4, "workers": 0, "chunk": 1000}
    settings = from_dict({"device": "cpu", "steps": 1, "data": data}, kind=TrainSettings)
    stream = data_of("stream", tmp_path / "data")
    Trainer(
        nn.Linear(3, 1),
        lambda model, batch: model(batch[0]).square().mean(),
        stream,
        settings=settings,
        run_dir=tmp_path / "run",
        progress=Reported(),
    ).fit()
    assert "data: chunks of 1000 samples, 2 at once in this process: at most 24 kB" in lines
