"""An engine in this process, with its patches in and an in-memory recorder, taken out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from holdfast.boot import patches
from holdfast.config import Settings, WatcherSettings
from holdfast.guard.engine import Engine
from holdfast.guard.fast.burst import StepBurst
from holdfast.records import Kind, fault
from holdfast.records.base import event_from
from holdfast.records.columns import COLUMNS
from holdfast.run import RowTable
from holdfast.run.checked import event_of
from holdfast.run.jsonl import decode, encode

STEP_DTYPE = np.dtype([("step", "<i8"), ("time", "<f8"), *((c, "<f4") for c in COLUMNS)])


class MemoryRing:
    """Keeps records in a list."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes]] = []
        self.has_message = False
        self.beats = 0

    def put(self, kind: int, payload: bytes) -> bool:
        self.records.append((kind, payload))
        return True

    def put_all(self, kind: int, payloads: list[bytes]) -> None:
        self.records += ((kind, payload) for payload in payloads)

    def heartbeat(self) -> None:
        self.beats += 1


class MemoryRecorder:
    """A Recorder without a run folder."""

    rank = 0
    lane = "r0"
    run = SimpleNamespace(path=None, write_traceback=lambda lane, text: None)

    def __init__(self) -> None:
        self.ring = MemoryRing()
        self.events: list[tuple[str, int, dict[str, Any]]] = []
        self.batches: list[dict[str, Any]] = []
        self.tables: dict[str, int] = {}

    def event(self, step: int, record: Kind) -> None:
        written = event_from(step, record, self.rank)
        self.events.append((record.kind, step, dict(written.data)))
        read = event_of(decode(encode(written.to_dict())))
        assert fault(read) == "", "the other process cannot read it"

    def batch(self, data: dict[str, Any]) -> None:
        self.batches.append(data)

    def table(self, name: str, columns: list[str]) -> RowTable:
        number = self.tables[name] = 16 + len(self.tables)
        return RowTable(self.ring, number, columns)  # type: ignore[arg-type]

    def orders(self) -> list[dict[str, Any]]:
        return []

    def close(self) -> None:
        pass

    def rows(self) -> np.ndarray:
        number = self.tables.get("steps")
        payload = b"".join(p for k, p in self.ring.records if k == number)
        return np.frombuffer(payload, STEP_DTYPE)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [data for k, _, data in self.events if k == kind]


MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    """``make_engine(device_path=True, ...)`` installs an engine; guard settings by name.

    ``fast=False`` has every step take the plain path.
    """
    current: list[Engine] = []
    patches.install(lambda: current[-1] if current else None)

    def make(settings: Settings | None = None, *, fast: bool | None = None, **guard: Any) -> Engine:
        # What is watched over many steps has tests of its own.
        settings = settings or Settings(watchers=WatcherSettings(memory=False, time=False))
        settings = replace(settings, guard=replace(settings.guard, **guard))
        recorder = MemoryRecorder()
        engine = Engine(settings, lambda: recorder, fast=fast)  # type: ignore[arg-type,return-value]
        engine.memory = recorder  # type: ignore[attr-defined]
        current.append(engine)
        return engine

    yield make
    patches.uninstall()


def own_steps(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each step that a burst was asked about was its own; filled while it is used."""
    found: list[bool] = []
    original = StepBurst.step_begins

    def counted(self: StepBurst, optimizer: object) -> bool:
        found.append(original(self, optimizer))
        return found[-1]

    monkeypatch.setattr(StepBurst, "step_begins", counted)
    return found
