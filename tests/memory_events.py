"""Events about memory, made of the records that the training writes."""

from __future__ import annotations

from typing import Any

from holdfast.records import Kind
from holdfast.records.memory import (
    BatchSplit,
    EvaluationGraphs,
    GraphChain,
    LostStep,
    MemoryRanOut,
    ValueGrowth,
    WorkerMemory,
)
from holdfast.types import Event

LINE: dict[str, Any] = {"file": "train.py", "line": 31, "seen": "trace"}
HELD = LINE | {
    "path": "losses", "name": "losses", "how": "local", "scope": "train.py:main",
    "function": "main", "heap_slope": 5e3,
}  # fmt: skip
GROWTH = ValueGrowth(
    **HELD, bytes=65536.0, rate=1.0, size=8, steps=8, graphs=0, tensor_bytes=65536.0,
    other_bytes=100.0,
)  # fmt: skip
CHAIN = GraphChain(**HELD, bytes=0.0, steps=8, age=8)
EVALUATION = EvaluationGraphs(**LINE, function="validate", nodes=40, evaluations=2, batches=5)
WORKER = WorkerMemory(
    **LINE, path="self.seen", name="seen", how="attribute", bytes=1e6, least_bytes=9e5,
    workers=2, steps=48, pass_batches=40,
)  # fmt: skip
RAN_OUT = MemoryRanOut(asked=2e9, parts={"weights": 1e6}, needs={}, modules={}, capacity=4e9)
SPLIT = BatchSplit(
    **LINE, module="Net", samples=64, parts=4, phase="forward", exact=True, first=True
)
LOST = LostStep(**LINE, batches=0)
RECORDS: dict[str, Any] = {
    record.kind: record for record in (GROWTH, CHAIN, EVALUATION, WORKER, RAN_OUT, SPLIT, LOST)
}
"""One record of each kind."""


def event(record: Kind, step: int = 4) -> Event:
    """The event with these data."""
    return Event(time=0.0, rank=0, step=step, kind=record.kind, data=record.to_dict())


def memory_event(kind: str, step: int = 4, **values: Any) -> Event:
    """An event of this kind with some values of its own."""
    return event(RECORDS[kind].replace(**values), step)
