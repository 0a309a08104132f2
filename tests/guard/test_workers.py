"""Workers that grow: told when it is clear that it is no cache that fills up."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.exams import sample_growth
from holdfast.guard import workers
from holdfast.guard.workers import Workers


@pytest.mark.parametrize(
    ("facts", "persistent", "told_at", "mild"),
    [
        ({"mild": False, "line": 3}, True, 48, False),
        ({"mild": True, "line": 3}, True, 80, False),
        ({"mild": True, "line": 3}, False, 48, True),
        ({"mild": True, "line": 0}, True, 48, True),
    ],
)
def test_when_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
    facts: dict[str, Any],
    persistent: bool,
    told_at: int,
    mild: bool,
) -> None:
    class Iterator:
        _workers = (SimpleNamespace(pid=1),)
        _dataset = None
        _persistent_workers = persistent
        _index_sampler = range(40)

    grown, told = 0, []

    def private(_pid: int) -> int:
        return grown << 20

    monkeypatch.setattr(workers, "_private", private)
    monkeypatch.setattr(sample_growth, "examine", lambda *_, **__: dict(facts))
    watch = Workers(told.append, fetch=False)
    iterator = Iterator()
    for batch in range(1, 121):
        grown += 1
        watch.fetched(iterator, sys._getframe())
        if told:
            assert batch == told_at
            break
    (event,) = told
    assert event["mild"] is mild and event["bytes"] == pytest.approx(1 << 20)
