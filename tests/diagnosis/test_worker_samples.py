"""What keeps a worker busy, as its own thread saw it."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from torch.utils.data._utils import fetch, worker

from holdfast.boot import patches
from holdfast.diagnosis.memory import worker_lengths
from holdfast.diagnosis.throughput import worker_samples


def decode() -> None:
    total = 0
    while True:
        total += sum(i * i for i in range(2000))  # decodes


def _worker_loop() -> None:
    decode()


def line(function: Callable[..., object], text: str) -> int:
    import inspect

    rows, first = inspect.getsourcelines(function)
    return first + next(i for i, row in enumerate(rows) if text in row)


def ran(work: Callable[[], object], known: Callable[[int], bool]) -> int:
    """Have a process work until something is known of it, however long that takes."""

    def run() -> None:
        worker_samples.begin()
        work()

    process = multiprocessing.get_context("fork").Process(target=run, daemon=True)
    process.start()
    assert process.pid is not None
    until = time.monotonic() + 60
    while not known(process.pid):
        assert process.is_alive() and time.monotonic() < until
        time.sleep(0.01)
    process.kill()
    process.join()
    return process.pid


def test_the_line_that_keeps_a_worker_busy():
    pid = ran(_worker_loop, lambda pid: worker_samples.look([pid], 0.1, 4) is not None)
    look = worker_samples.look([pid], step=0.1, batch=4)
    assert look is not None
    named = look.lines[0]
    assert named.spot == (__file__, line(decode, "# decodes"))
    assert set(named.path) == {named.spot}  # and the expression in it, nothing of the loop
    # Busy all the time: a batch of four takes as long as a step.
    assert look.per_sample == pytest.approx(0.1 / 4, rel=0.2)
    assert look.made == 0.0  # it is not torch that has it do so


class Rows:
    def __getitem__(self, index: int) -> int:
        return sum(i * i for i in range(20_000))


def test_how_long_a_worker_takes_to_make_a_batch():
    def _worker_loop() -> None:
        fetcher = fetch._MapDatasetFetcher(Rows(), True, list, False)
        while True:
            fetcher.fetch([0])
            until = time.monotonic() + 0.0015
            while time.monotonic() < until:
                pass  # hands it over

    def known(pid: int) -> bool:
        seen = worker_samples._read(pid)
        return seen is not None and seen.ticks >= 60

    pid = ran(_worker_loop, known)
    look = worker_samples.look([pid], step=0.1, batch=1)
    assert look is not None and look.made is not None and 0.01 < look.made < 0.095


def test_a_worker_that_waits_makes_nothing_and_of_none_nothing_is_known():
    def _worker_loop() -> None:
        time.sleep(60)  # as for the next order

    idle = ran(_worker_loop, lambda pid: worker_samples._read(pid) is not None)
    look = worker_samples.look([idle], step=0.1, batch=4)
    assert look is not None and (look.samples, look.lines, look.made) == ([], [], 0.0)
    assert worker_samples.look([2**22 + 1], step=0.1, batch=4) is None
    assert worker_samples.look([], step=0.1, batch=4) is None


class Caching:
    """A dataset that fills something, or nothing."""

    def __init__(self, grows: bool) -> None:
        self.grows, self.seen = grows, list[int]()
        self.names = [str(i) for i in range(6000)]

    def sample(self, index: int) -> None:
        time.sleep(0.01)
        if self.grows:
            self.seen.append(index)  # fills


def grows(dataset: Caching) -> None:
    def _worker_loop(dataset: Caching, fetcher: object) -> None:
        for index in itertools.count():
            dataset.sample(index)

    worker_samples.order_growth(os.getpid(), 0.15)
    _worker_loop(dataset, fetcher=None)


@pytest.mark.parametrize("fills", [True, False])
def test_what_grows_in_a_worker(fills: bool):
    dataset = Caching(fills)
    pid = ran(lambda: grows(dataset), lambda pid: worker_samples.growth(pid) is not None)
    answer = worker_samples.growth(pid)
    assert answer is not None
    found = worker_lengths.container(dataset, answer)
    wanted = "self.seen.append(index)" if fills else "self.names = ["
    assert found.code.startswith(wanted) and not found.tested
    assert found.copied is not fills


def answered(dataset: object, fetcher: object, work: Callable[[], object]) -> tuple[str, str]:
    """Name and kind of what a worker finds that does some work between its looks."""
    seen = worker_lengths.Lengths()

    def _worker_loop(dataset: object, fetcher: object) -> None:
        for _ in range(4):
            work()
            seen.look(sys._getframe())

    _worker_loop(dataset, fetcher)
    assert seen.answer
    return seen.answer["name"], seen.answer["how"]


def test_a_stream_in_a_worker_is_looked_at_too():
    def stream() -> Iterator[int]:
        history = []
        while True:
            history.append(0)
            yield len(history)

    taken = stream()
    fetcher = SimpleNamespace(dataset_iter=taken)
    assert answered(None, fetcher, lambda: next(taken)) == ("history", "local")


class Cached:
    @functools.cache  # noqa: B019 (as people write it)
    def features(self, start: int) -> list[int]:
        return [start]


def test_a_cached_method_of_a_dataset():
    dataset, starts = Cached(), itertools.count()
    found = answered(dataset, None, lambda: dataset.features(next(starts)))
    assert found == ("features", "cache")


def test_a_spawned_worker_finds_its_loop_by_name():
    patches.install(lambda: None)
    try:
        assert pickle.loads(pickle.dumps(worker._worker_loop)) is worker._worker_loop
    finally:
        patches.uninstall()
