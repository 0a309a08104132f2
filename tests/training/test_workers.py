"""The number of workers and threads follows from what was measured, and the reason is told."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import Clock
from torch.utils.data import DataLoader, Dataset

from holdfast.training.data import workers
from holdfast.training.data.loading import DataSettings
from holdfast.training.data.workers import (
    choose_threads,
    choose_workers,
    improve,
    measure_loading,
)
from holdfast.training.device import Place

CPU = Place(torch.device("cpu"))
GPU = Place(torch.device("cuda", 0))
AUTO = DataSettings()


@pytest.mark.parametrize(
    ("place", "load", "step", "cores", "expected"),
    [
        (GPU, 3e-4, 0.1, 16, "0 workers: a batch is made in 0.3 ms, less than handing it over"),
        (GPU, 0.002, 0.5, 16, "0 workers: a batch is made in 2 ms, 0.4% of a step"),
        (GPU, 0.1, 0.05, 1, "0 workers: a batch is made in 100 ms, and there is no second core"),
        (GPU, 0.1, 0.05, 16, "3 workers: a batch is made in 100 ms, a step takes 50 ms"),
        (GPU, 0.01, 0.05, 16, "1 worker: a batch is made in 10 ms, a step takes 50 ms"),
        (GPU, 2.0, 0.05, 16, "15 workers: a batch is made in 2 s, a step takes 50 ms; 50 would"),
        (CPU, 2.0, 0.05, 16, "8 workers: "),
        (GPU, 0.1, None, 16, "4 workers: a batch is made in 100 ms, a step is not timed yet"),
        (GPU, 0.1, None, 3, "2 workers: "),
        (CPU, 0.1, None, 2, "1 worker: "),
    ],
)
def test_workers_are_chosen_from_cores_and_times(
    place: Place, load: float, step: float | None, cores: int, expected: str
) -> None:
    count, why = choose_workers(AUTO, place, load, step, cores, arm=False)
    assert why.startswith(expected) and int(why.split()[0]) == count


def test_a_given_number_is_taken_as_it_is() -> None:
    settings = DataSettings(workers=7)
    assert choose_workers(settings, CPU, 0.0, 1.0, 2, arm=True) == (
        7,
        "7 workers: data.workers says so",
    )


def test_an_arm_cpu_gets_one_worker_with_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.platform, "machine", lambda: "aarch64")
    count, why = choose_workers(AUTO, CPU, 0.5, 0.01, 8)
    assert count == 1 and "ARM" in why
    assert improve(1, 0.9, 8) is None
    assert improve(0, 0.9, 8) is not None
    threads = choose_threads(1, CPU, 8)
    assert (threads.main, threads.worker) == (4, 4) and "ARM" in threads.why
    assert choose_threads(1, GPU, 8).worker == 7


def test_more_workers_come_only_where_the_loop_waits_and_cores_are_free() -> None:
    assert improve(1, 0.01, 8, arm=False) is None
    assert improve(1, float("nan"), 8, arm=False) is None
    assert improve(7, 0.9, 8, arm=False) is None
    assert improve(1, 0.5, 2, place=CPU, arm=False) is None
    found = improve(2, 0.5, 8, arm=False)
    assert found == (4, "4 workers: the loop waited for data 50% of its time with 2")
    assert (improve(0, 0.1, 8, arm=False) or (0,))[0] > 0
    assert (improve(2, 1.0, 8, arm=False) or (0,))[0] == 7


def test_no_more_workers_come_where_the_last_ones_did_not_help() -> None:
    assert improve(4, 0.49, 8, before=0.5, arm=False) is None
    assert improve(4, 0.3, 8, before=0.5, arm=False) is not None


def test_threads_leave_room_for_workers() -> None:
    assert choose_threads(0, CPU, 8, arm=False).main == 8
    threads = choose_threads(3, CPU, 8, arm=False)
    assert (threads.main, threads.worker) == (5, 1)
    assert threads.why == "5 threads: 8 cores less 3 for workers"
    assert choose_threads(9, CPU, 8, arm=False).main == 1


def test_a_number_of_threads_that_was_given_is_taken() -> None:
    threads = choose_threads(2, CPU, 8, given=3, arm=False)
    assert (threads.main, threads.worker) == (2, 3)
    assert choose_threads(0, CPU, 8, given=3, arm=False).main == 3
    assert choose_threads(4, CPU, 8, given=3, arm=False).main == 1
    assert choose_threads(1, GPU, 8, given=2, arm=True).worker == 2


class Drawing(Dataset[Any]):
    """Samples that draw from every source of random numbers there is."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)
        self.taken = 0

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        self.taken += 1
        drawn = torch.rand(1, generator=self.generator)
        return drawn + torch.rand(1) + random.random() + np.random.rand()


def test_a_look_at_loading_is_short_and_leaves_no_trace() -> None:
    data = Drawing()

    def state() -> Any:
        return (
            torch.get_rng_state().tolist(),
            random.getstate(),
            np.random.get_state()[1].tolist(),  # type: ignore[index]
            data.generator.get_state().tolist(),
        )

    before = state()
    seconds = measure_loading(lambda: DataLoader(data, 8, shuffle=True), batches=3)
    assert state() == before
    assert seconds > 0 and data.taken == 32


def test_a_look_ends_when_its_time_is_over(clock: Clock) -> None:
    made: list[int] = []

    def slowly() -> Any:
        for number in range(100):
            clock.sleep(0.02)
            made.append(number)
            yield number

    assert measure_loading(slowly, batches=50, seconds=0.01) >= 0.02
    assert made == [0]


def test_a_look_at_nothing_is_zero_and_an_error_in_it_is_left_to_the_loop() -> None:
    assert measure_loading(lambda: []) == 0.0

    def broken() -> Any:
        torch.rand(1)
        raise ValueError("no such file")
        yield

    before = torch.get_rng_state()
    assert measure_loading(broken) == 0.0
    assert torch.equal(torch.get_rng_state(), before)
