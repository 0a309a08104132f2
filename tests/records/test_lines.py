"""Kinds of lost time: what training writes is read back, and a key that is not known is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from odd.base import recorded
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast.config import Settings, WatcherSettings
from holdfast.detectors.judge import Judge
from holdfast.diagnosis.throughput import host_reads, line_tree, step_times
from holdfast.diagnosis.throughput.line_times import LineTimes
from holdfast.diagnosis.throughput.loader_profiler import LoaderProfiler
from holdfast.diagnosis.throughput.loop_clock import LoopLoader
from holdfast.diagnosis.throughput.recompiles import CompiledFunction
from holdfast.diagnosis.throughput.step_times import StepTimes
from holdfast.guard.fast.torch_time_saved import _EVERY, TorchTimeSaved
from holdfast.records import KINDS, Kind, RecordError, read
from holdfast.records.lines import StepPace, TensorReads, TimedLines, TimedLoader
from holdfast.records.times import Recompiled, TimeSaved
from holdfast.types import Event
from tests.conftest import Clock
from tests.line_events import loader, look, reads, slower, stalls


def read_back(record: Kind) -> Kind | RecordError | None:
    """As the process that judges reads what was written."""
    return read(record.kind, json.loads(json.dumps(record.to_dict())))


@pytest.fixture
def watched(make_engine, clock, monkeypatch):
    monkeypatch.setattr(line_tree, "_costs", None)
    engine = make_engine(Settings(watchers=WatcherSettings(memory=False)))
    yield engine
    engine.state.watchers.close()


def train(clock: Clock, steps: int) -> None:
    """Line by line slower, and now and then a stall."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(steps):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        clock.sleep(0.002 + 1e-4 * step)
        if step % 7 == 6:
            clock.sleep(0.08)


def test_looks_at_a_loop_are_read_back_as_they_were_written(watched, clock):
    train(clock, 150)
    reported = [json.loads(json.dumps(data)) for kind, _, data in watched.memory.events
            if kind == "line_times"]  # fmt: skip
    records = [TimedLines.from_dict(data) for data in reported]
    assert [record.to_dict() for record in records] == reported
    assert {record.look for record in records} >= {"reference", "slow", "stall"}
    slow = next(record for record in records if record.look == "slow")
    assert slow.baseline is not None and slow.now.registered and slow.places and slow.source
    assert next(record for record in records if record.look == "stall").stalls


def test_reads_of_tensors():
    loader_batches = host_reads.ReadTimes(LineTimes().profile(), None)

    def item() -> None:
        loader_batches.saw("item", 1e-5)

    item()
    reported = loader_batches.measured(StepTimes().measured())
    assert isinstance(reported, TensorReads) and reported.reads and read_back(reported) == reported


def test_a_look_at_a_loader(clock):
    times, iterator = StepTimes(), iter(DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=4))
    feed, profiler = LoopLoader(), LoaderProfiler(times, fetch=True)
    feed.fetched(iterator)
    profiler._indices = [0, 1, 2]
    reported = profiler.look(feed, LineTimes())
    assert isinstance(reported, TimedLoader) and reported.samples == 3
    assert reported.slowest[0] in ("0", "1", "2")
    assert read_back(reported) == reported


def test_a_compilation_that_came_again():
    compiled = CompiledFunction("forward", __file__, 3, "a.py:3", 2, 0.5, reason="k == 3")
    compiled.reasons.update(["k == #"] * 2)
    reported = compiled.measured(4.0)
    assert isinstance(reported, Recompiled) and (reported.same, reported.trained) == (2, 4.0)
    assert reported.excerpt and read_back(reported) == reported


def test_what_faster_forms_save():
    reported: list[TimeSaved] = []
    torch_time_saved, steps = TorchTimeSaved(reported.append), nn.Identity()
    for _ in range(16):
        assert torch_time_saved.turn(steps) == 1
        torch_time_saved.took(3e-4 if torch_time_saved.own else 1e-4, steps=1)
        assert torch_time_saved.turn(steps) == _EVERY - 1
    assert [read_back(one) for one in reported] == reported and reported


# ---------------------------------------------------------------------- what is no record


def judged(make_rows, kind: str, data: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Codes of what is found, and what is told of holdfast itself."""
    judge = Judge()
    judge.feed(make_rows(40), [Event(time=0.0, rank=0, step=9, kind=kind, data=data)] * 2)
    judge.close()
    assert all(error.kind == "holdfast_error" for error in judge.errors)
    return [f.code for f in judge.findings], [error.data["error"] for error in judge.errors]


def test_a_key_that_the_training_names_otherwise_is_reported_once_and_never_silence(make_rows):
    kind, data = slower()
    assert judged(make_rows, kind, data) == (["TPT004"], [])
    times = dict(data["times"])
    times["fastest"] = times.pop("fastest_block")
    found, errors = judged(make_rows, kind, data | {"times": times})
    assert found == []
    assert errors == [
        "RecordError: line_times: times: StepPace: no key 'fastest_block', and the unknown key "
        "'fastest'"
    ]


def test_a_key_that_is_renamed_where_it_is_written_is_reported_by_the_training(
    watched, clock, monkeypatch
):
    def renamed(**values: Any) -> StepPace:
        return StepPace(fastest=values.pop("fastest_block"), **values)  # type: ignore[call-arg]

    monkeypatch.setattr(step_times, "StepPace", renamed)
    train(clock, 40)
    reported = [data for kind, _, data in watched.memory.events if kind == "holdfast_error"]
    assert len(reported) == 1 and "fastest" in reported[0]["error"]
    assert "line_times" not in {kind for kind, _, _ in watched.memory.events}


@pytest.mark.parametrize(
    ("made", "odd", "why"),
    [
        (slower, {"look": "fast"}, "'fast' is not one of reference, look, waits, slow, stall"),
        (slower, {"batch": "four"}, "'four' is not a whole number"),
        (slower, {"registering": [99]}, "a line without a place"),
        (slower, {"registering": [-1]}, "a line without a place"),
        (slower, {"files": []}, "a place without a file"),
        (slower, {"source": [[], []]}, "the source of 2 of 1 files"),
        (slower, {"turn": {"path": [], "loop": [0, 1, 2], "outer": [0, 1, 2]}}, "without a place"),
        (slower, {"turn": {"path": [0], "loop": [1, 1, 2], "outer": [0, 1, 2]}}, "a loop at none"),
        (stalls, {"stalls": [[3, 0.1]]}, "is not 3 values"),
        (loader, {"lines": [{"path": [0]}]}, "no key 'function'"),
        (reads, {"places": []}, "a line without a place"),
    ],
)
def test_what_refers_to_nothing_or_is_of_another_form_is_no_record(made, odd, why):
    kind, data = made()
    found = read(kind, {**data, **odd})
    assert isinstance(found, RecordError) and why in str(found)


def test_a_cache_is_a_place_too():
    kind, data = look("waits", [(7, 0.1, {"mark": "fetch", "cache": 3})])
    assert isinstance(read(kind, data), TimedLines)
    data["now"]["lines"][0]["cache"] = 9
    assert isinstance(read(kind, data), RecordError)


def test_events_of_earlier_versions_are_read():
    ours = {"line_times", "loader_times", "tensor_reads", "recompile", "spared"}
    old = [event for event in recorded()["events"] if event["kind"] in ours]
    assert {event["kind"] for event in old} == ours <= set(KINDS)
    assert all(isinstance(read(event["kind"], event["data"]), Kind) for event in old)
