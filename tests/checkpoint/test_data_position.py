"""The place in the data: after a kill at any batch the rest comes out as it would have."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from holdfast.checkpoint import rng
from holdfast.checkpoint.data_position import Position
from holdfast.checkpoint.loader_pass import _Order
from holdfast.checkpoint.tree import flatten, unflatten

EPOCHS = 3


class Noisy(Dataset[Any]):
    """Each sample is its index and numbers drawn from every generator of its process."""

    def __init__(self, count: int = 22) -> None:
        self.count = count
        self.read = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        return index, random.random(), float(np.random.rand()), torch.rand(1)


class Stream(IterableDataset[Any]):
    def __init__(self, draws: bool = True) -> None:
        self.draws = draws

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, 22, step):
            yield index, torch.rand(1) if self.draws else torch.zeros(1)


class Wandering(Sampler[int]):
    """Draws from the loop's own numbers, one sample at a time."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(22):
            yield random.randrange(22)

    def __len__(self) -> int:
        return 22


def reported(batch: Any) -> str:
    return repr([value.tolist() if hasattr(value, "tolist") else value for value in batch])


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def run(
    loaders: list[Any],
    *,
    then: Any = None,
    stop: int | None = None,
    by_epochs: bool = True,
    fast: bool = False,
) -> tuple[list[str], Any, Position]:
    """A loop that draws on the way; stopped after so many batches it gives its whole state."""
    position = Position()
    if then is not None:
        position.resume(then["position"], then["dice"])
    seen: list[str] = []
    for epoch in position.epochs(EPOCHS) if by_epochs else range(EPOCHS):
        for loader in loaders:
            # One who resumes amid an epoch may forget this for that one.
            if hasattr(getattr(loader, "sampler", None), "set_epoch") and not position.pending:
                loader.sampler.set_epoch(epoch)
            loader_pass = position.begins(loader, fast=fast, say=print)
            if loader_pass is None:
                continue
            for batch in loader_pass.iterator:
                loader_pass.handed_out()
                # What a dropout would do.
                seen.append(f"{reported(batch)} {torch.rand(1).item()} {random.random()}")
                if len(seen) == stop:
                    state = {"position": position.state(), "dice": rng.state()}
                    return seen, unflatten(*flatten(state)), position
            position.ends(loader_pass)
    return seen, None, position


LOADERS: dict[str, Any] = {
    "in order": lambda: [DataLoader(Noisy(), 4)],
    "shuffled": lambda: [DataLoader(Noisy(), 4, shuffle=True)],
    "one generator": lambda: [
        DataLoader(Noisy(), 4, shuffle=True, generator=torch.Generator().manual_seed(3))
    ],
    "with replacement": lambda: [
        DataLoader(
            Noisy(),
            4,
            sampler=RandomSampler(
                Noisy(), replacement=True, generator=torch.Generator().manual_seed(3)
            ),
        )
    ],
    "weighted": lambda: [
        DataLoader(Noisy(), 4, sampler=WeightedRandomSampler([1.0] * 22, 22, replacement=True))
    ],
    "no batches": lambda: [DataLoader(Noisy(6), None, shuffle=True)],
    "distributed": lambda: [
        DataLoader(Noisy(), 4, sampler=DistributedSampler(Noisy(), 2, 1, seed=7))
    ],
    "two": lambda: [DataLoader(Noisy(), 4, shuffle=True), DataLoader(Noisy(9), 3, shuffle=True)],
    "the same twice": lambda: (
        [DataLoader(Noisy(9), 3, shuffle=True, generator=torch.Generator().manual_seed(1))] * 2
    ),
    "a list": lambda: [[(1, 2), (3, 4), (5, 6)]],
    "a still stream": lambda: [DataLoader(Stream(draws=False), 4)],
}


@pytest.mark.parametrize("by_epochs", [True, False], ids=["epochs", "plain"])
@pytest.mark.parametrize("name", LOADERS)
def test_the_rest_is_what_it_would_have_been(name: str, by_epochs: bool) -> None:
    seed(1)
    whole, _, _ = run(LOADERS[name](), by_epochs=by_epochs)
    assert len(set(whole)) == len(whole)
    for stop in (1, 2, len(whole) // 3, len(whole) // 2, len(whole) - 1):
        seed(1)
        first, then, _ = run(LOADERS[name](), stop=stop, by_epochs=by_epochs)
        assert first == whole[:stop]
        seed(99)
        rest, _, position = run(LOADERS[name](), then=then, by_epochs=by_epochs)
        assert rest == whole[stop:], f"stopped after {stop}"
        assert position.why == "" and not position.pending


@pytest.mark.parametrize("dataset", [Noisy, Stream], ids=["mapped", "stream"])
def test_workers_draw_the_same_numbers_again(dataset: Any) -> None:
    def loaders() -> list[Any]:
        shuffle = True if dataset is Noisy else None
        return [DataLoader(dataset(), 4, shuffle=shuffle, num_workers=2)]

    seed(1)
    whole, _, _ = run(loaders())
    seed(1)
    stop = len(whole) // EPOCHS + 3
    first, then, _ = run(loaders(), stop=stop)
    seed(99)
    rest, _, position = run(loaders(), then=then)
    assert first + rest == whole
    assert position.why == ""


def test_the_order_is_reported_alike_however_often_it_is_asked_for() -> None:
    draws: list[Any] = [*([n, n + 1] for n in range(90)), 7, ["a"], [3]]
    often, once, other = (_Order(iter(some), []) for some in (draws, draws, draws[1:]))
    reported = [(next(often), often.recent()[-1])[1] for _ in draws]
    assert list(once) == draws and list(other) == draws[1:]
    assert list(once.recent()) == list(often.recent()) == reported[-16:]
    assert reported[-2] == reported[-3] and once.recent() != other.recent()


def test_nothing_is_read_to_get_past_it() -> None:
    data = Noisy()
    seed(1)
    _, then, _ = run([DataLoader(Noisy(), 4, shuffle=True)], stop=4)
    position = Position()
    position.resume(then["position"], then["dice"])
    next(position.epochs(EPOCHS))
    loader_pass = position.begins(DataLoader(data, 4, shuffle=True), fast=False, say=print)
    assert loader_pass is not None and loader_pass.batches == 4 and data.read == 0


def test_fast_skips_in_the_sampler_and_says_so() -> None:
    def loaders() -> list[Any]:
        return [DataLoader(Noisy(), 4, shuffle=True, num_workers=1)]

    seed(1)
    whole, _, _ = run(loaders())
    seed(1)
    _, then, _ = run(loaders(), stop=4)
    rest, _, position = run(loaders(), then=then, fast=True)
    assert len(rest) == len(whole) - 4
    # The samples are the same; what is drawn for them is not.
    assert [line.split("]")[0] for line in rest] == [line.split("]")[0] for line in whole[4:]]
    assert "fast=True" in position.why


def test_lasting_workers_keep_the_order_and_are_said_to_differ() -> None:
    def loaders() -> list[Any]:
        return [DataLoader(Noisy(), 4, shuffle=True, num_workers=1, persistent_workers=True)]

    seed(1)
    whole, _, _ = run(loaders())
    per_epoch = len(whole) // EPOCHS
    for stop, exact in ((2, True), (per_epoch + 2, False)):
        seed(1)
        _, then, _ = run(loaders(), stop=stop)
        rest, _, position = run(loaders(), then=then)
        assert (rest == whole[stop:]) is exact
        assert [line.split("]")[0] for line in rest] == [
            line.split("]")[0] for line in whole[stop:]
        ]
        assert ("random numbers of their own" in position.why) is not exact


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (
            lambda: DataLoader(Noisy(), 4, shuffle=True),
            lambda: DataLoader(Noisy(21), 4, shuffle=True),
            "other samples",
        ),
        (
            lambda: DataLoader(Noisy(), 4),
            lambda: DataLoader(Noisy(4), 4),
            "ended after 1 batches, 3 had been used",
        ),
        (lambda: DataLoader(Stream(), 4), None, "random numbers of the loop itself"),
        (
            lambda: DataLoader(Noisy(), 4, sampler=Wandering()),
            None,
            "random numbers of the loop itself",
        ),
        (lambda: map(lambda i: (i, i), range(9)), None, "a map is no DataLoader"),
    ],
    ids=["other data", "less data", "drawing stream", "drawing sampler", "a generator"],
)
def test_what_cannot_be_the_same_is_said(before: Any, after: Any, why: str) -> None:
    seed(1)
    _, then, _ = run([before()], stop=3)
    _, _, position = run([(after or before)()], then=then)
    assert why in position.why


class Stateful:
    """A loader that keeps its own place, as those of torchdata do."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for number in range(self.at, 8):
            self.at = number + 1
            yield number, number
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def test_a_loader_that_keeps_its_own_place_is_asked() -> None:
    seed(1)
    whole, _, _ = run([Stateful()])
    seed(1)
    first, then, _ = run([Stateful()], stop=11)
    rest, _, position = run([Stateful()], then=then)
    assert first + rest == whole and position.why == ""


def test_an_epoch_saved_after_its_loop_is_over() -> None:
    loader = DataLoader(Noisy(), 4, shuffle=True, generator=torch.Generator().manual_seed(5))
    seed(1)
    position = Position()
    epochs = position.epochs(EPOCHS)
    assert next(epochs) == 0
    loader_pass = position.begins(loader, fast=False, say=print)
    assert loader_pass is not None
    list(loader_pass.iterator)
    position.ends(loader_pass)
    then = unflatten(*flatten({"position": position.state(), "dice": rng.state()}))
    expected = [reported(batch) for batch in (next(epochs), loader)[1]]
    position = Position()
    position.resume(then["position"], then["dice"])
    epochs = position.epochs(EPOCHS)
    assert next(epochs) == 1
    again = DataLoader(Noisy(), 4, shuffle=True, generator=torch.Generator().manual_seed(5))
    loader_pass = position.begins(again, fast=False, say=print)
    assert loader_pass is not None
    assert [reported(batch) for batch in loader_pass.iterator] == expected
    assert list(epochs) == [2]


def test_stages_that_are_over_are_not_begun() -> None:
    position = Position()
    for _ in position.epochs(2):
        pass
    epochs = position.epochs(4)
    assert [next(epochs), next(epochs)] == [0, 1]
    then = position.state()
    position = Position()
    position.resume(then, rng.state())
    assert list(position.epochs(2)) == [] and position.left_out == 1
    assert list(position.epochs(4)) == [1, 2, 3]
    assert list(position.epochs(2)) == [0, 1]


def test_without_a_loader_the_place_is_not_known() -> None:
    position = Position()
    position.resume(Position().state(), rng.state())
    assert "its place is not known" in position.why


def test_side_by_side() -> None:
    """Two passes at once: each is taken up, and the first one's draws are not undone."""

    def pair(position: Position) -> Iterator[str]:
        loaders = [DataLoader(Noisy(), 4, shuffle=True), DataLoader(Noisy(), 4)]
        iterators: list[Any] = [None, None]
        while True:
            line = ""
            for i, loader in enumerate(loaders):
                if iterators[i] is None:
                    loader_pass = position.begins(loader, fast=False, say=print)
                    assert loader_pass is not None
                    iterators[i] = loader_pass.iterator
                batch = next(iterators[i], None)
                if batch is None:
                    return
                line += reported(batch)
            yield f"{line} {random.random()}"

    seed(1)
    whole = list(pair(Position()))
    seed(1)
    position = Position()
    lines = pair(position)
    first = [next(lines) for _ in range(2)]
    then, rolled = position.state(), rng.state()
    position = Position()
    position.resume(then, rolled)
    assert first + list(pair(position)) == whole
