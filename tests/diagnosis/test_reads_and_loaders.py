"""Reads are counted by line, slow samples are named, and all is as it was afterwards."""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from holdfast.boot import patches
from holdfast.diagnosis.throughput import host_reads, loader_profiler
from holdfast.diagnosis.throughput.line_times import LineTimes
from holdfast.diagnosis.throughput.profiles import StepProfile
from tests.conftest import Clock
from tests.line_events import PACE


@pytest.fixture
def offered():
    patches.install(lambda: None)
    yield
    patches.uninstall()


def test_reads_are_counted_by_line_and_way(offered):
    untouched = torch.Tensor.__dict__.get("item")
    assert host_reads.begin(StepProfile(), None)
    values = torch.arange(5.0)
    for value in values:
        float(value)
    values.sum().item()
    if values.any():
        pass
    loader_batches = host_reads.end()
    assert loader_batches is not None
    reads = loader_batches.measured(PACE).reads
    counted = sorted((read.read, read.count) for read in reads)
    assert counted == [("__bool__", 1), ("__float__", 5), ("item", 1)]
    assert torch.Tensor.__dict__.get("item") is untouched
    values.sum().item()
    assert host_reads.end() is None


def test_a_read_inside_of_a_library_is_not_the_lines_own(offered):
    assert host_reads.begin(StepProfile(), None)
    values = torch.arange(5.0)
    statistics.linear_regression(values, values)  # type: ignore[arg-type]  # a tensor is one
    float(values[0])
    loader_batches = host_reads.end()
    assert loader_batches is not None
    assert {read.direct for read in loader_batches.measured(PACE).reads} == {True, False}


def test_what_torch_reads_for_itself_does_not_count(offered):
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([parameter], foreach=False)
    parameter.grad = torch.ones(2)
    assert host_reads.begin(StepProfile(), None)
    optimizer.step()
    assert host_reads.end() is None


def test_without_patches_there_is_nothing_to_count():
    assert not host_reads.begin(StepProfile(), None)
    assert host_reads.end() is None


class Rows(Dataset):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        random.random()
        if index == 7:
            self.clock.sleep(0.02)
        return torch.rand(2) + np.random.rand()


def test_the_slow_sample_and_its_line_are_named(clock: Clock):
    torch.manual_seed(0)
    before = torch.get_rng_state().clone(), random.getstate()
    iterator = iter(DataLoader(Rows(clock), batch_size=8))
    torch.set_rng_state(before[0])
    found = loader_profiler.make_samples(iterator, list(range(12)), LineTimes())
    assert found is not None
    assert max(found.samples, key=lambda sample: sample[1])[0] == 7
    assert found.lines[0].spot[1] == Rows.__getitem__.__code__.co_firstlineno + 3
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]


def test_it_stops_when_its_time_is_over(monkeypatch, clock: Clock):
    monkeypatch.setattr(loader_profiler, "_SECONDS", 0.01)
    found = loader_profiler.make_samples(
        iter(DataLoader(Rows(clock), batch_size=8)), [7] * 30, LineTimes()
    )
    assert found is not None and len(found.samples) == 1


class Stream(IterableDataset):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __iter__(self):
        for i in range(30):
            self.clock.sleep(0.002)
            yield torch.tensor(i)


def test_a_stream_is_read_from_its_beginning(clock: Clock):
    found = loader_profiler.make_samples(
        iter(DataLoader(Stream(clock), batch_size=4)), (), LineTimes()
    )
    assert found is not None
    assert found.lines[0].function == "__iter__"
    assert found.per_sample == pytest.approx(0.002, rel=0.05)
