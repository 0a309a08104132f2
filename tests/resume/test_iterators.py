"""Iterators are put where others of their kind stood, in their own memory."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.resume import iterators

SOME = {"a": [1], "b": [2], "c": [3]}
LONG = [*range(9)]
MADE: dict[str, Callable[[], Iterator[Any]]] = {
    "range": lambda: iter(range(3, 40, 4)),
    "back": lambda: reversed(range(9)),
    "list": lambda: iter(LONG),
    "tuple": lambda: iter((1, "a", None, 4, 5, 6)),
    "array": lambda: iter(np.arange(6)),
    "reversed": lambda: reversed(LONG),
    "dict": lambda: iter(SOME),
    "items": lambda: iter(SOME.items()),
    "values": lambda: iter(SOME.values()),
    "enumerate": lambda: enumerate(range(5, 50), 2),
    "zip": lambda: zip(LONG, reversed(range(9)), strict=False),
    "map": lambda: map(str, LONG),
    "filter": lambda: filter(None, LONG),
}


def _generator() -> Iterator[int]:
    total = 0
    for one in range(20):
        for more in (1, 2):
            total += one * more
            yield total


def _as_it_is(value: Any, path: str) -> Any:
    return value


def _again(live: Any, node: Any, path: str) -> Any:
    return live if type(live) is dict or callable(live) else node


@pytest.mark.parametrize("name", MADE)
def test_an_iterator_goes_on_where_another_stood(name: str) -> None:
    for far in (1, 2):
        then, live = MADE[name](), MADE[name]()
        for _ in range(far):
            next(then)
        iterators.put(live, iterators.take(then, "x", _as_it_is), "x", _again)
        assert iterators.take(live, "x", _as_it_is) == iterators.take(then, "x", _as_it_is)
        assert str(list(live)) == str(list(then))


def test_a_range_goes_back_and_into_another() -> None:
    live = iter(range(5, 9))
    assert [next(live), next(live)] == [5, 6]
    iterators.put(live, {"i": "range_iterator", "v": [2, 3, 4]}, "x", _again)
    assert list(live) == [2, 5, 8, 11]


def test_a_counter_goes_back() -> None:
    live, then = itertools.count(9), itertools.count(3)
    iterators.put(live, iterators.take(then, "x", _as_it_is), "x", _again)
    assert next(live) == 3 and next(live) == 4
    with pytest.raises(iterators.NoPlaceError):
        iterators.take(itertools.count(1, 2), "x", _as_it_is)


def test_a_sequence_is_replaced_and_let_go() -> None:
    old, new = [1, 2, 3], [7, 8, 9]
    before = sys.getrefcount(old), sys.getrefcount(new)
    live = iter(old)
    next(live)
    iterators.put(live, {"i": "list_iterator", "n": 1, "v": new}, "x", _again)
    assert (sys.getrefcount(old), sys.getrefcount(new)) == (before[0], before[1] + 1)
    assert list(live) == [8, 9]
    assert sys.getrefcount(new) == before[1]


def test_what_is_of_another_kind_is_refused() -> None:
    place = iterators.take(iter(LONG), "x", _as_it_is)
    for other in (iter((1, 2)), iter(range(3)), itertools.cycle([1])):
        with pytest.raises(iterators.NoPlaceError):
            iterators.put(other, place, "x", _again)
    with pytest.raises(iterators.NoPlaceError, match="over a list"):
        iterators.put(iter(LONG), {**place, "v": (1, 2)}, "x", _again)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(1)))
    for one in (itertools.cycle([1]), iter({1, 2}), iter(loader)):
        with pytest.raises(iterators.NoPlaceError):
            iterators.take(one, "x", _as_it_is)


def test_a_generator_at_another_yield_is_refused() -> None:
    def two() -> Iterator[int]:
        yield 1
        yield 2

    live, then = two(), two()
    assert [next(live), next(then), next(then)] == [1, 1, 2]
    assert iterators.shape(iterators.take(live, "x", _as_it_is)) != iterators.shape(
        iterators.take(then, "x", _as_it_is)
    )
    with pytest.raises(iterators.NoPlaceError, match="another yield"):
        iterators.put(live, iterators.take(then, "x", _as_it_is), "x", _again)


def test_a_generator_goes_on_with_its_variables_and_loops() -> None:
    live, then = _generator(), _generator()
    next(live)
    for _ in range(7):
        next(then)
    iterators.put(live, iterators.take(then, "x", _as_it_is), "x", _again)
    assert list(live) == list(then)
