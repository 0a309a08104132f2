"""Workers that grow: measured again and again, looked into once."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from holdfast.diagnosis.memory import worker_lengths, workers
from holdfast.diagnosis.memory.workers import Private, Workers
from holdfast.records.base import Kind
from holdfast.records.memory import WorkerContainer


class Iterator:
    _workers = (SimpleNamespace(pid=1),)
    _dataset = None
    _persistent_workers = True
    _index_sampler = range(40)


def own(size: int) -> Private:
    return Private(dirty=size, anonymous=size)


def test_when_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    grown, looked = 0, []
    recorded: list[Kind] = []

    def container(*_: Any) -> WorkerContainer:
        looked.append(grown)
        return WorkerContainer(tested=True, line=3)

    monkeypatch.setattr(workers, "_private", lambda _pid: own(grown << 20))
    monkeypatch.setattr(worker_lengths, "container", container)
    watch = Workers(recorded.append)
    iterator = Iterator()
    for _ in range(240):
        grown += 1
        watch.fetched(iterator)
    # With growing distance, and after whole passes over the data.
    assert [one.to_dict()["steps"] for one in recorded] == [
        48,
        64,
        80,
        104,
        120,
        152,
        160,
        200,
        240,
    ]
    first = recorded[0].to_dict()
    assert recorded[0].kind == "worker_leak" and len(looked) == 1
    assert first["bytes"] == first["least_bytes"] == pytest.approx(1 << 20)
    assert (first["pass_batches"], first["tested"]) == (40, True)


def test_workers_that_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Kind] = []
    monkeypatch.setattr(workers, "_private", lambda _pid: own(1 << 20))
    watch = Workers(recorded.append)
    iterator = Iterator()
    for _ in range(240):
        watch.fetched(iterator)
    assert recorded == []


def test_a_file_that_is_filled_through_a_mapping_is_no_growth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cache on disk: its pages are private to the worker that writes them, and the file's."""
    recorded: list[Kind] = []
    grown = 0
    monkeypatch.setattr(workers, "_private", lambda _pid: Private(grown << 20, 8 << 20))
    watch = Workers(recorded.append)
    iterator = Iterator()
    for _ in range(240):
        grown += 1
        watch.fetched(iterator)
    assert recorded == []


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="told by Linux only")
def test_what_the_system_tells_of_a_mapped_file(tmp_path: Path) -> None:
    pages = np.memmap(tmp_path / "cache", dtype=np.uint8, mode="w+", shape=(8 << 20,))
    before = workers._private(os.getpid())
    pages[:] = 1
    mapped = workers._private(os.getpid())
    # Fresh pages: an array may get those of another one that is gone.
    held = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held.write(bytes([1]) * len(held))
    after = workers._private(os.getpid())
    assert before is not None and mapped is not None and after is not None
    assert mapped.anonymous - before.anonymous < 4 << 20
    assert after.anonymous - mapped.anonymous > 4 << 20 < after.dirty - mapped.dirty
    assert len(held) == len(pages)
