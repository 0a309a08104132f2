"""Batches are fetched as torch fetches them, without the span that only a profiler reads."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.autograd.profiler import record_function
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from ..guard.conftest import MakeEngine
from ..guard.conftest import make_engine as make_engine


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all spans that are opened from now on."""
    opened: list[str] = []

    class Noted(record_function):
        def __enter__(self) -> Any:
            opened.append(self.name)
            return super().__enter__()

    monkeypatch.setattr(torch.autograd.profiler, "record_function", Noted)
    return opened


def loader(workers: int = 0) -> DataLoader[Any]:
    torch.manual_seed(1)
    return DataLoader(
        TensorDataset(torch.arange(10)), batch_size=4, shuffle=True, num_workers=workers
    )


def drawn(workers: int = 0) -> list[list[int]]:
    return [batch.tolist() for (batch,) in loader(workers)]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_same_batches_without_a_span(
    make_engine: MakeEngine, spans: list[str], workers: int
) -> None:
    plain = drawn(workers)  # there is no engine yet
    assert [s for s in spans if "DataLoader" in s]
    spans.clear()
    make_engine()
    assert drawn(workers) == plain
    assert not [s for s in spans if "DataLoader" in s]


def test_a_profiler_sees_them(make_engine: MakeEngine) -> None:
    make_engine()
    with torch.profiler.profile() as profiled:
        drawn()
    assert any("DataLoader" in event.key for event in profiled.key_averages())


def test_not_where_torch_is_to_stay_as_it_is(make_engine: MakeEngine, spans: list[str]) -> None:
    make_engine(fused=False)
    drawn()
    assert [s for s in spans if "DataLoader" in s]


def test_a_stream_that_is_longer_than_it_says_is_warned_about(make_engine: MakeEngine) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(5))

        def __len__(self) -> int:
            return 2

    make_engine()
    stream = DataLoader(Stream(), batch_size=None)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert len(stream) == 2 and len(list(stream)) == 5
    assert any("Length of IterableDataset" in str(one.message) for one in said)
