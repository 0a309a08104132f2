"""Loaders of a run: how many workers, and that they are the same after a resume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from tests.conftest import Clock
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from holdfast.config import from_dict
from holdfast.run.host_cores import cores_here
from holdfast.training.data.gathered import Gathered
from holdfast.training.data.loaders import EpochLoaders
from holdfast.training.data.streaming import Streamed
from holdfast.training.device import Place
from holdfast.training.settings import TrainSettings
from holdfast.training.task import Task

CPU = Place(torch.device("cpu"))


class Slow(Dataset[Tensor]):
    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Tensor:
        self._clock.sleep(self._seconds)
        return torch.tensor(float(index))


class Stream(IterableDataset[Tensor]):
    def __init__(self) -> None:
        self.started = 0

    def __iter__(self) -> Any:
        self.started += 1
        return iter(torch.arange(9.0))


def feed(
    train: Any, said: list[str] | None = None, place: Place = CPU, **data: Any
) -> EpochLoaders:
    settings = from_dict({"epochs": 3, "data": {"batch": 4, **data}}, kind=TrainSettings)
    task = Task(model=nn.Linear(1, 1), loss=lambda m, b: b.mean(), train=train, validation=train)
    return EpochLoaders(task, settings, place, (said if said is not None else []).append)


def test_fast_data_needs_no_workers_and_the_reason_is_reported(clock: Clock) -> None:
    said: list[str] = []
    made = feed(TensorDataset(torch.zeros(24, 2)), said)
    assert made.workers == 0 and made.length == 6 and made.steps() == 18 and made.usual == 4
    assert "less than handing it over costs" in said[0]


@pytest.mark.skipif(cores_here() < 2, reason="needs a second core")
def test_slow_data_gets_workers(clock: Clock) -> None:
    said: list[str] = []
    made = feed(Slow(clock, 0.004), said)
    assert made.workers > 0 and "a batch is made in" in said[0]


@pytest.mark.skipif(cores_here() < 2, reason="needs a second core")
def test_a_look_at_chunks_reads_small_ones_and_counts_their_reading(clock: Clock) -> None:
    class File(Slow):
        reads: ClassVar[list[int]] = []

        def __len__(self) -> int:
            return 64

        def __getitems__(self, indices: Sequence[int]) -> Gathered:
            self.reads.append(len(indices))
            self._clock.sleep(0.004 * len(indices))
            return Gathered((torch.tensor(indices),), len(indices))

    said: list[str] = []
    stream: Any = Streamed([File(clock, 0.0)])
    made = feed(stream, said, chunk=1000)
    assert max(File.reads) == 8  # two batches, not the whole file
    assert made.workers > 0 and "a batch is made in 16 ms" in said[0]


def test_more_workers_after_an_epoch_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    more = (2, "2 workers: the loop waited")
    monkeypatch.setattr("holdfast.training.data.loaders.improve", lambda *args, **named: more)
    said: list[str] = []
    made = feed(TensorDataset(torch.zeros(24, 2)), said)
    made.epoch_ends(0.6, 0.02)
    assert made.workers == 2 and said[-1] == "data: 2 workers: the loop waited"


def test_an_epoch_that_waits_for_cheap_batches_gets_no_worker() -> None:
    made = feed(TensorDataset(torch.zeros(24, 2)))
    made.epoch_ends(0.3, 0.0004)
    assert made.workers == 0


def test_a_number_that_is_given_stays(clock: Clock) -> None:
    made = feed(Slow(clock, 0.0), workers=0)
    made.epoch_ends(0.9, 0.5)
    assert made.workers == 0
    made.load_state_dict({"workers": 3})
    assert made.workers == 0


def test_a_resumed_run_goes_on_with_as_many_workers() -> None:
    made = feed(TensorDataset(torch.zeros(24, 2)))
    made.load_state_dict({"workers": 1})
    assert made.workers == 1 == made.state_dict()["workers"]
    loader = made.epoch(0)
    assert isinstance(loader, DataLoader) and loader.num_workers == 1
    made.close()


def test_a_stream_is_not_read_before_the_run() -> None:
    stream, said = Stream(), list[str]()
    made = feed(stream, said)
    assert stream.started == 0 and made.workers == 0 and made.steps() is None
    assert [len(batch) for batch in made.epoch(0)] == [4, 4, 1]
    assert "a stream of your own" in said[0]


def test_a_loader_of_the_users_own_is_used_as_it_is() -> None:
    own = DataLoader(TensorDataset(torch.zeros(10, 1)), batch_size=3)
    made = feed(own)
    assert made.epoch(0) is own and made.length == 4 and made.usual == 3


def test_ranks_that_would_see_the_same_samples_are_reported() -> None:
    two = Place(torch.device("cpu"), rank=0, world=2)
    said: list[str] = []
    feed(DataLoader(TensorDataset(torch.zeros(10, 1)), batch_size=3), said, two)
    assert "all 2 ranks the same samples" in said[0]
    feed(Stream(), said, two)
    assert any("skip what the other of 2 ranks take" in line for line in said)


def test_validation_reads_everything_once_in_order() -> None:
    made = feed(TensorDataset(torch.arange(10.0)), workers=0)
    rows = torch.cat([batch[0] for batch in made.validation()])
    assert rows.tolist() == list(range(10))


def test_an_epoch_has_its_own_order_and_the_same_one_again() -> None:
    made = feed(TensorDataset(torch.arange(24.0)), workers=0)
    first, second, again = (
        torch.cat([batch[0] for batch in made.epoch(number)]).tolist() for number in (0, 1, 0)
    )
    assert first == again != second
    assert sorted(first) == sorted(second) == list(range(24))
