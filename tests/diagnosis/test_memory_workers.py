"""Workers that grow: measured again and again, looked into once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.diagnosis.memory import worker_lengths, workers
from holdfast.diagnosis.memory.workers import Workers


class Iterator:
    _workers = (SimpleNamespace(pid=1),)
    _dataset = None
    _persistent_workers = True
    _index_sampler = range(40)


def test_when_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    grown, looked = 0, []
    recorded: list[tuple[str, dict[str, Any]]] = []

    def facts(*_: Any) -> dict[str, Any]:
        looked.append(grown)
        return {"tested": True, "line": 3}

    monkeypatch.setattr(workers, "_private", lambda _pid: grown << 20)
    monkeypatch.setattr(worker_lengths, "facts", facts)
    watch = Workers(lambda kind, data: recorded.append((kind, data)))
    iterator = Iterator()
    for _ in range(240):
        grown += 1
        watch.fetched(iterator)
    # With growing distance, and after whole passes over the data.
    assert [data["steps"] for _, data in recorded] == [48, 64, 80, 104, 120, 152, 160, 200, 240]
    kind, first = recorded[0]
    assert kind == "worker_growth" and len(looked) == 1
    assert first["bytes"] == first["least_bytes"] == pytest.approx(1 << 20)
    assert (first["pass_batches"], first["tested"]) == (40, True)


def test_workers_that_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[str] = []
    monkeypatch.setattr(workers, "_private", lambda _pid: 1 << 20)
    watch = Workers(lambda kind, _data: recorded.append(kind))
    iterator = Iterator()
    for _ in range(240):
        watch.fetched(iterator)
    assert recorded == []
