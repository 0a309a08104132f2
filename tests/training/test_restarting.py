"""Ranks that look for one checkpoint together, as threads that exchange what they know."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint.file import save
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tree import flatten
from holdfast.config import RunSettings, Settings
from holdfast.errors import CheckpointError
from holdfast.launcher import start
from holdfast.training import distributed
from holdfast.training.device import Place
from holdfast.training.restarting import common_checkpoint, going_on


class Exchange:
    """What ``everyone`` does between processes."""

    def __init__(self, world: int) -> None:
        self._given: list[Any] = [None] * world
        self._barrier = threading.Barrier(world, timeout=20)

    def __call__(self, own: Any, place: Place) -> list[Any]:
        self._given[place.rank] = own
        self._barrier.wait()
        every = list(self._given)
        self._barrier.wait()
        return every


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    def call(world: int, function: Callable[[Place], Any]) -> list[Any]:
        monkeypatch.setattr(distributed, "everyone", Exchange(world))
        places = [Place(torch.device("cpu"), rank, world) for rank in range(world)]
        with ThreadPoolExecutor(world) as ranks:
            return list(ranks.map(function, places))

    return call


def put(folder: Path, step: int, world: int, *, without: int | None = None) -> None:
    store = CheckpointStore(folder)
    store.open_for_writing()
    for rank in range(world):
        if rank != without:
            meta = {"step": step, "rank": rank, "world": world, "metrics": {}, "kind": "asked"}
            tree = {"x": torch.full((3,), float(step))}
            save(store.path(step, rank), *flatten(tree), {**meta, "good": True})


def names(found: list[Path | None]) -> list[str]:
    return [path.name.partition(".s")[0] if path else "" for path in found]


def found(together: Any, world: int, folder: Path, said: list[str]) -> list[str]:
    return names(together(world, lambda place: common_checkpoint(folder, place, said.append)))


def test_a_step_that_one_rank_never_saved_is_no_step(tmp_path: Path, together: Any) -> None:
    put(tmp_path, 4, 2)
    put(tmp_path, 6, 2, without=1)
    assert found(together, 2, tmp_path, []) == ["step-0000000004.r0", "step-0000000004.r1"]


def test_more_and_fewer_ranks_find_the_same_step(tmp_path: Path, together: Any) -> None:
    put(tmp_path, 4, 4)
    put(tmp_path, 6, 2)
    for world in (1, 2, 3, 4):
        expected = [f"step-0000000006.r{rank if rank < 2 else 0}" for rank in range(world)]
        assert found(together, world, tmp_path, []) == expected


def test_damage_that_one_rank_finds_sends_all_to_an_older_one(
    tmp_path: Path, together: Any
) -> None:
    put(tmp_path, 4, 2)
    put(tmp_path, 6, 2)
    path = CheckpointStore(tmp_path).path(6, 1)
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    said: list[str] = []
    assert found(together, 2, tmp_path, said) == ["step-0000000004.r0", "step-0000000004.r1"]
    assert "checkpoint of step 6 is damaged (rank 1:" in said[0]


def test_nothing_that_all_have_is_a_new_beginning_or_an_error(
    tmp_path: Path, together: Any
) -> None:
    put(tmp_path / "checkpoints", 2, 2, without=1)
    settings = Settings(run=RunSettings(dir=str(tmp_path)))

    def ask(resume: Any) -> Callable[[Place], Any]:
        return lambda place: going_on(resume, settings, "mine", place, lambda line: None)

    assert together(2, ask("auto")) == ["anew", "anew"]
    with pytest.raises(CheckpointError, match="no good checkpoint that all ranks have"):
        together(2, ask(True))


def test_a_run_of_this_launch_goes_on_and_one_of_another_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "job-7"}.items():
        monkeypatch.setenv(key, value)
    settings, said = Settings(run=RunSettings(dir=str(tmp_path / "run"))), list[str]()
    place = Place(torch.device("cpu"))
    assert going_on(None, settings, "mine", place, said.append) is None
    start.start_run(settings, "mine", ["mine"])
    assert going_on(None, settings, "mine", place, said.append) == "auto"
    assert "earlier life of this launch" in said[0]
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-8")
    assert going_on(None, settings, "mine", place, said.append) is None


def test_ranks_take_as_many_batches_as_the_one_with_the_most(together: Any) -> None:
    def take(place: Place) -> list[tuple[int, bool]]:
        return list(distributed.in_step(range(10, 12 + place.rank), place))

    assert together(2, take) == [
        [(10, True), (11, True), (11, False)], [(10, True), (11, True), (12, True)]
    ]  # fmt: skip


def test_a_rank_without_any_batch_is_an_error_on_all_of_them(together: Any) -> None:
    def take(place: Place) -> str:
        try:
            return str(list(distributed.in_step(range(place.rank), place)))
        except Exception as error:
            return str(error)

    assert all("of 2 ranks 1 have no sample" in reported for reported in together(2, take))
