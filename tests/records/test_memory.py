"""Each kind of event about memory is written by what measures it, and read as it was written."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.actions.split_batch import Split
from holdfast.detectors.judge import Judge
from holdfast.diagnosis.memory import footprint, workers
from holdfast.diagnosis.memory.code_line import code_line
from holdfast.diagnosis.memory.parts import MemoryParts
from holdfast.diagnosis.memory.workers import Private, Workers
from holdfast.records import KINDS, Kind, memory
from holdfast.recovery.out_of_memory import OutOfMemoryRecovery
from tests.diagnosis.test_memory_watcher import STEPS, Loop, judged
from tests.diagnosis.test_memory_watcher import loop as loop
from tests.memory_events import GROWTH

# A search ends after some milliseconds: of a clock that no other process makes go faster.
pytestmark = pytest.mark.usefixtures("clock")

Written = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def written() -> Written:
    """What was recorded: kind and data."""
    return []


def read_back(written: Written) -> list[Kind]:
    """The records, each the same again when it is written and read once more."""
    assert written
    records = [KINDS[kind].from_dict(json.loads(json.dumps(data))) for kind, data in written]
    for record, (_, data) in zip(records, written, strict=True):
        assert type(record).from_dict(record.to_dict()) == record
        assert record.to_dict().keys() == data.keys()
    return records


def kept(loop: Loop) -> list[Kind]:
    loop.watch.close()
    return read_back([(event.kind, dict(event.data)) for event in loop.recorded.events])


def test_a_list_that_grows(loop: Loop) -> None:
    seen: list[torch.Tensor] = []
    for _ in range(STEPS):
        loop.train(loop.loss())
        seen.append(torch.zeros(1 << 15))
    first = kept(loop)[0]
    assert isinstance(first, memory.ValueGrowth) and first.path == "seen"
    assert first.code == "seen.append(torch.zeros(1 << 15))" and first.seen == "trace"


def test_a_state_that_is_carried_on(loop: Loop) -> None:
    state = torch.zeros(())
    for _ in range(STEPS):
        state = 0.5 * state + loop.loss()
        loop.train(state * 2, retain_graph=True)
    first = kept(loop)[0]
    assert isinstance(first, memory.GraphChain) and first.path == "state" and first.fed
    assert first.depth is not None and first.held is None


def test_an_evaluation_with_graphs(loop: Loop) -> None:
    for step in range(1, 41):
        loop.train(loop.loss())
        if step % 10 == 0:
            judged(loop.model)
    (first, *_) = (r for r in kept(loop) if isinstance(r, memory.EvaluationGraphs))
    assert first.nodes > 0 and first.step_nodes
    # How long lines are followed goes by the clock: the line itself, or the one that led there.
    assert first.function in ("judged", "test_an_evaluation_with_graphs")


def test_workers_that_grow(monkeypatch: pytest.MonkeyPatch, written: Written) -> None:
    grown = iter(range(1, 999))

    def private(pid: int) -> Private:
        size = next(grown) << 20
        return Private(size, size)

    class Iterator:
        _workers = (SimpleNamespace(pid=1),)
        _dataset = None

    monkeypatch.setattr(workers, "_private", private)
    watch, iterator = Workers(lambda one: written.append((one.kind, one.to_dict()))), Iterator()
    for _ in range(64):
        watch.fetched(iterator)
    (first, *_) = read_back(written)
    assert isinstance(first, memory.WorkerMemory) and not first.looked and first.copied


def test_parts_of_the_memory(written: Written) -> None:
    model = nn.Linear(4, 2)
    optimizers = [(torch.optim.SGD(model.parameters()), [])]
    training: Any = SimpleNamespace(
        optimizers=lambda: optimizers, record=lambda one: written.append((one.kind, one.to_dict()))
    )
    MemoryParts(training).step_ended(8)
    (sizes,) = read_back(written)
    assert sizes == memory.PartSizes(weights=40, gradients=0, optimizer_state=0, device="cpu")
    earlier = {"weights": 40, "gradients": 0, "optimizer state": 0, "device": "cpu"}
    assert memory.PartSizes.from_dict(earlier) == sizes


def test_an_error_that_ends_the_script() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    training: Any = SimpleNamespace(
        models=lambda: [model], optimizers=lambda: [(optimizer, ["weight", "bias"])]
    )
    many = torch.zeros(1 << 23)
    with pytest.raises(RuntimeError) as caught:
        many[:, None] - many  # more than there are addresses  # pyright: ignore
    record = footprint.arithmetic(caught.value, training)
    assert read_back([(record.kind, record.to_dict())]) == [record]
    assert record.expression == "many[:, None] - many" and record.result == (1 << 23, 1 << 23)
    assert record.needs["optimizer state"] == 2 * record.parts["weights"] == 80


def test_a_batch_that_was_split_and_a_step_that_was_lost(written: Written) -> None:
    training: Any = SimpleNamespace(
        record_at=lambda step, one: written.append((one.kind, one.to_dict())), parameters=list
    )
    out = OutOfMemoryRecovery(training, on=True)
    line = code_line(__file__, 1)
    first = Split("Net", 64, "forward", 2, error="out of memory", seconds=0.5, place=line)
    out.split.news += [first, Split("Net", 64, "backward", 4, ["BatchNorm"])]
    out.tell(3)
    out.split.arm("backward", "out of memory", line)
    out.step_ends(4, [], None)
    split, lost = read_back(written)
    assert isinstance(split, memory.BatchSplit) and isinstance(lost, memory.LostStep)
    assert (split.parts, split.exact, split.why, split.seconds) == (4, False, "BatchNorm", 0.5)
    assert (split.phase, split.error, split.first) == ("forward and backward", first.error, True)
    assert split.code == lost.code == line.code and split.line == lost.line == 1


@pytest.mark.parametrize("name", GROWTH.fields())
def test_a_key_that_was_renamed_is_an_error_of_ours(make_rows, make_event, name: str) -> None:
    data = GROWTH.to_dict()
    data[f"{name}_now"] = data.pop(name)
    judge = Judge()
    judge.feed(make_rows(8), [make_event("growth", 0, 4, **data)] * 2)
    (error,) = judge.errors
    assert error.data["where"] == "reading an event growth"
    assert f"unknown key '{name}_now'" in error.data["error"] and not judge.findings
