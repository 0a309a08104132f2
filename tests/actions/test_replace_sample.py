"""Samples that cannot be read: read again, replaced, counted, or let through."""

from __future__ import annotations

import errno
import gc
import json
import random
import struct
import weakref
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
from torch.utils.data.dataloader import _DatasetKind

from holdfast.actions import replace_sample
from holdfast.actions.replace_sample import of_data
from holdfast.records.crash import RaisedException

WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Noisy(Dataset[torch.Tensor]):
    """Samples with noise of all three generators; some raise, for good or the first time."""

    def __init__(self, bad: Mapping[int, Exception] | None = None, *, times: int = 10**9) -> None:
        self.bad, self.times, self.asked = bad or {}, times, dict[int, int]()

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = torch.rand(()) + random.random() + np.random.rand()
        self.asked[index] = self.asked.get(index, 0) + 1
        if index in self.bad and self.asked[index] <= self.times:
            raise self.bad[index]
        return torch.tensor([index, float(noise)])


@pytest.fixture(autouse=True)
def fetching(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    plain = _DatasetKind.create_fetcher

    def create(*args: Any) -> Any:
        return replace_sample.fetcher(plain(*args))

    monkeypatch.setattr(_DatasetKind, "create_fetcher", create)
    monkeypatch.setattr(replace_sample, "_PAUSES", (0.0, 0.0, 0.0))
    yield
    replace_sample.loader_began()


def epoch(dataset: Any, workers: int = 0, **options: Any) -> tuple[torch.Tensor, list[Any]]:
    """One pass, and what was told about it."""
    for generator in (torch.manual_seed, random.seed, np.random.seed):
        generator(7)
    options = {"shuffle": True, **options}
    loader = DataLoader(dataset, batch_size=8, num_workers=workers, **options)
    found = replace_sample.loader_begins(loader, lambda e: RaisedException(message=str(e), line=3))
    iterator = iter(loader)
    replace_sample.loader_began()
    try:
        return torch.cat(list(iterator)), [] if found is None else found.fresh()
    finally:
        if workers:  # else children that are forked later would end them, which takes seconds
            iterator._shutdown_workers()  # type: ignore[attr-defined]


@WORKERS
def test_what_can_be_read_the_second_time_changes_nothing(workers: int) -> None:
    undisturbed, none = epoch(Noisy(), workers)
    rows, reported = epoch(Noisy({11: OSError("stale"), 12: TimeoutError()}, times=2), workers)
    assert none == []
    assert {one.sample: one.replaced for one in reported} == {11: False, 12: False}
    # Without workers the states of Python and numpy are known from the first failure on.
    columns = slice(None) if workers else slice(1)
    assert torch.equal(rows[:, columns], undisturbed[:, columns])


@WORKERS
def test_what_cannot_is_replaced_by_the_same_other_one(workers: int) -> None:
    undisturbed, _ = epoch(Noisy(), workers)
    first, reported = epoch(Noisy({11: OSError("truncated")}), workers)
    again, _ = epoch(Noisy({11: OSError("truncated")}), workers)
    (at,) = torch.nonzero(undisturbed[:, 0] == 11).flatten().tolist()
    others = [row for row in range(64) if row != at]
    assert torch.equal(first[others, 0], undisturbed[others, 0]) and first[at, 0] != 11
    assert torch.equal(first[:, 0], again[:, 0])
    assert [(one.type, one.sample, one.replaced) for one in reported] == [("OSError", 11, True)]


@WORKERS
def test_beyond_the_budget_the_exception_goes_through(workers: int) -> None:
    bad = {index: OSError(f"file {index}") for index in (1, 2, 3, 4)}
    with pytest.raises(OSError, match="file"):
        epoch(Noisy(bad), workers)


def test_workers_of_the_next_epoch_do_not_try_it_again() -> None:
    loader = DataLoader(Noisy({11: OSError()}), batch_size=8, shuffle=True, num_workers=1)
    reported: list[int] = []
    for _ in range(3):
        found = replace_sample.loader_begins(loader, lambda e: RaisedException())
        iterator = iter(loader)
        replace_sample.loader_began()
        assert found is not None and len(list(iterator)) == 8
        reported.append(len(found.fresh()))
    assert reported == [1, 0, 0]


def test_what_is_known_is_of_a_dataset_and_keeps_nothing_alive() -> None:
    dataset = Noisy({11: OSError()})
    assert len(epoch(dataset)[1]) == 1
    assert epoch(dataset)[1] == [], "another loader over the same data"
    with pytest.raises(OSError):
        epoch(dataset, shuffle=False)
    gone = weakref.ref(dataset)
    del dataset
    gc.collect()
    assert gone() is None
    plain: Any = [1, 2]
    assert (
        replace_sample.loader_begins(DataLoader(plain, shuffle=True), lambda e: RaisedException())
        is None
    )


def test_a_share_of_a_large_set_may_be_replaced() -> None:
    class Large(Noisy):
        def __len__(self) -> int:
            return 10_000

    found = replace_sample.SampleReplacement(Large(), lambda e: RaisedException())
    assert found._most == 10


@WORKERS
@pytest.mark.parametrize("error", [KeyError("label"), TypeError("none"), RuntimeError("size")])
def test_errors_of_programming_go_through_at_once(workers: int, error: Exception) -> None:
    dataset = Noisy({11: error})
    with pytest.raises(type(error)):
        epoch(dataset, workers)
    assert dataset.asked.get(11, 1) == 1


def test_only_loaders_that_train_are_helped() -> None:
    bad = {11: OSError("truncated")}
    with pytest.raises(OSError):
        epoch(Noisy(bad), shuffle=False)
    with pytest.raises(OSError), torch.no_grad():
        epoch(Noisy(bad))

    class Stream(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            raise OSError("gone")

    with pytest.raises(OSError):
        epoch(Stream(), shuffle=False)

    class AtOnce(Noisy):
        def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
            return [self[index] for index in indices]

    with pytest.raises(OSError):
        epoch(AtOnce(bad))


def test_a_sample_behind_a_subset_is_named_by_its_own_index() -> None:
    half = Subset(Noisy({11: OSError("truncated")}), range(8, 40))
    rows, reported = epoch(half)
    assert len(rows) == 32
    assert [(one.sample, one.index) for one in reported] == [(11, 3)]


def test_which_errors_are_of_data(tmp_path: Any) -> None:
    def raised(read: Any, *args: Any) -> Exception:
        with pytest.raises(Exception) as caught:
            read(*args)
        return caught.value

    cut = tmp_path / "cut.npy"
    np.save(cut, np.arange(100.0))
    cut.write_bytes(cut.read_bytes()[:300])
    weights = tmp_path / "cut.pt"
    torch.save({"x": torch.randn(100)}, weights)
    weights.write_bytes(weights.read_bytes()[:900])
    of_files = [
        raised(np.load, cut), raised(torch.load, weights), raised(json.loads, "{"),
        raised(zlib.decompress, b"abc"), raised(struct.unpack, "d", b"a"),
        raised(zipfile.ZipFile, cut), raised(bytes.decode, b"\xff\xfe\xfa", "utf-8"),
        raised(open, tmp_path / "missing"), EOFError(), ConnectionResetError(),
    ]  # fmt: skip
    assert [error for error in of_files if not of_data(error)] == []
    of_code = [
        raised(int, "a"), raised({}.__getitem__, 1), raised(torch.ones(2).reshape, 3),
        raised(torch.stack, [torch.ones(1), torch.ones(2)]), KeyboardInterrupt(), MemoryError(),
        AssertionError(), ZeroDivisionError(), torch.OutOfMemoryError(),
        OSError(errno.EMFILE, "Too many open files"), OSError(errno.ENOMEM, "no memory"),
    ]  # fmt: skip
    assert [error for error in of_code if of_data(error)] == []
