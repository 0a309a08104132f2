"""The watcher on whole loops: what it records names the line that takes the time."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from holdfast.config import Settings, WatcherSettings
from holdfast.detectors.judge import Judge
from holdfast.diagnosis.throughput import line_tree, run_queue, step_counts
from holdfast.diagnosis.throughput.line_profiler import LineProfiler
from holdfast.diagnosis.throughput.loop_clock import LoopLoader
from holdfast.records.lines import Purpose
from holdfast.types import Event, Finding
from tests.conftest import Clock

KINDS = ("line_times", "loader_times", "tensor_reads")
WATCHED = Settings(watchers=WatcherSettings(memory=False, fetch_samples=True))


@pytest.fixture
def watched(make_engine, clock, monkeypatch):
    # What the trace costs is measured once in a process: by this clock, here.
    monkeypatch.setattr(line_tree, "_costs", None)
    # Nobody else has the processor on this clock, whatever the machine does.
    monkeypatch.setattr(run_queue.RunQueue, "waited", lambda self: 0.0)
    engine = make_engine(WATCHED)
    yield engine
    engine.state.watchers.close()
    assert sys.gettrace() is None
    assert "watchers" not in engine.off


def findings(engine, code: str) -> list[Finding]:
    """What the detectors make of what was recorded."""
    rows, judge = engine.memory.rows(), Judge()
    times = dict(zip(rows["step"].tolist(), rows["time"].tolist(), strict=True))
    judge.feed(
        rows,
        [
            Event(time=times.get(step, 0.0), rank=0, step=step, kind=kind, data=data)
            for kind, step, data in engine.memory.events
        ],
    )
    judge.close()
    assert not judge.errors
    return [finding for finding in judge.findings if finding.code == code]


@pytest.mark.parametrize(("extra", "counted"), [(2.0, 5.0), (0.5, 2.5)])
def test_what_a_look_costs_is_the_trace_and_not_what_the_script_does_under_it(
    watched, monkeypatch, extra: float, counted: float
) -> None:
    time = watched.state.watchers.time
    profile = LineProfiler("stall", time._lines, time._times)
    monkeypatch.setattr(profile, "step", lambda clock, frame: False)
    time._clock.busy, time._lines.extra = 5.0, extra
    time._orders.begins("stall")
    time._examined(profile, None, None)
    assert time._orders.spent == counted


@pytest.mark.parametrize(("purpose", "most"), [("look", 8), ("stall", 48)])
def test_a_look_ends_where_no_step_says_anything(watched, purpose: Purpose, most: int) -> None:
    """On a slow host the trace made our own part of every step too long to count it."""
    time = watched.state.watchers.time
    profile = LineProfiler(purpose, time._lines, time._times)
    assert profile.begin(sys._getframe(), time._clock)
    time._clock.begins = True
    try:
        steps = next(n for n in range(1, 100) if profile.step(time._clock, sys._getframe()))
    finally:
        time._lines.stop()
    assert steps == most


@pytest.mark.parametrize(("queued", "most"), [(0.0, 2), (1.0, 48)])
def test_a_wait_for_the_processor_is_no_slow_sample(watched, queued: float, most: int) -> None:
    time = watched.state.watchers.time
    profile = LineProfiler("waits", time._lines, time._times)
    profile.rare = True
    assert profile.begin(sys._getframe(), time._clock)
    time._clock.begins, time._clock.wall = False, 1.1
    time._clock.waited, time._clock.queued = 1.0, queued
    try:
        steps = next(n for n in range(1, 100) if profile.step(time._clock, sys._getframe()))
    finally:
        time._lines.stop()
    assert steps == most
    assert (profile.measure(1, list) is None) == bool(queued)


def here(function, text: str) -> int:
    """The line of a function that has this text."""
    import inspect

    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


class Net(nn.Linear):
    """A model that has something to do."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(8, 1)
        self.clock = clock

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.clock.sleep(2e-4)
        return super().forward(input)


def parts(clock: Clock) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Net(clock)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


class SlowRows(Dataset):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> torch.Tensor:
        self.clock.sleep(0.002)  # slow
        return torch.ones(8) * index / 160


def test_the_slow_line_of_a_dataset(watched, clock):
    model, optimizer = parts(clock)
    for _ in range(2):
        for x in DataLoader(SlowRows(clock), batch_size=4):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    (finding,) = findings(watched, "TPT001")
    assert finding.line == here(SlowRows, "# slow")
    assert finding.evidence["what"] == "dataset" and finding.evidence["share"] > 0.5


def test_the_first_look_at_a_wait_is_what_later_ones_are_compared_with(watched, clock):
    model, optimizer = parts(clock)
    for _ in range(4):
        for x in DataLoader(SlowRows(clock), batch_size=8):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    looks = [data["look"] for kind, _, data in watched.memory.events if kind == "line_times"]
    assert looks[0] == "waits" and "reference" not in looks


class KeptRows(SlowRows):
    """Makes each row once; or again and again, where nothing is kept."""

    def __init__(self, clock: Clock, keeps: bool) -> None:
        super().__init__(clock)
        self.keeps, self.kept = keeps, dict[int, torch.Tensor]()

    def __getitem__(self, index: int) -> torch.Tensor:
        if index not in self.kept:  # asks
            self.kept[index] = super().__getitem__(index)
        return self.kept[index] if self.keeps else self.kept.pop(index)


@pytest.mark.parametrize("keeps", [True, False])
def test_what_fills_a_cache_is_the_business_of_a_first_pass(watched, clock, keeps):
    model, optimizer = parts(clock)
    rows = KeptRows(clock, keeps)
    for _ in range(4):
        for x in DataLoader(rows, batch_size=4):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = [(f.evidence["what"], f.line) for f in findings(watched, "TPT001")]
    assert found == ([] if keeps else [("cache", here(KeptRows, "# asks"))])


def growing(steps: int, clock: Clock) -> None:
    model, optimizer = parts(clock)
    kept: list[int] = []
    for step in range(steps):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(step)
        clock.sleep(0.0001 * len(kept))  # grows


def test_a_line_that_grows(watched, clock):
    growing(100, clock)
    (finding,) = findings(watched, "TPT004")
    assert finding.line == here(growing, "# grows")
    assert finding.evidence["line_now_ms"] > 2 * finding.evidence["line_before_ms"]


class Allocator:
    """Stands in for the device's: full from some step on, and then it runs out on each of them."""

    def __init__(self, clock: Clock, full: int) -> None:
        self.clock = clock
        self.calls, self.full, self.retries = 0, full, 0

    def allocate(self) -> torch.Tensor:
        self.calls += 1
        if self.calls > self.full:
            self.retries += 1
            self.clock.sleep(0.004)
        return torch.empty(16)


def allocating(steps: int, allocator: Allocator) -> None:
    model, optimizer = parts(allocator.clock)
    for _ in range(steps):
        scratch = allocator.allocate()  # allocates
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        del scratch


@pytest.mark.parametrize("counts", [True, False])
def test_a_line_that_waits_for_memory(watched, clock, monkeypatch, counts):
    allocator = Allocator(clock, full=40)
    monkeypatch.setattr(step_counts, "retries", lambda: allocator.retries if counts else 0)
    allocating(100, allocator)
    (finding,) = findings(watched, "TPT004")
    assert finding.evidence["what"] == ("retries" if counts else "wait")
    assert finding.line in (
        here(allocating, "# allocates"), here(Allocator.allocate, "self.clock.sleep"),
    )  # fmt: skip


def stalling(steps: int, clock: Clock) -> None:
    model, optimizer = parts(clock)
    for step in range(steps):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 6 == 5:
            save_checkpoint(clock)


def save_checkpoint(clock: Clock) -> None:
    clock.sleep(0.03)  # stalls


def test_a_line_that_stalls(watched, clock):
    stalling(120, clock)
    (finding,) = findings(watched, "TPT005")
    assert finding.line == here(save_checkpoint, "# stalls")
    assert finding.evidence["what"] in ("checkpoint", "wait")
    assert 5 <= finding.evidence["every"] <= 7


def test_the_watch_rests_after_a_stall_that_was_foreseen(watched, clock):
    stalling(120, clock)
    assert findings(watched, "TPT005")
    settles(watched, clock)
    # Of a stage that ends before the stall it waits for, nothing is left to wait for.
    watched.state.watchers.time._orders.foreseen = watched.state.training.iteration + 10_000
    settles(watched, clock)


def settles(engine, clock: Clock) -> None:
    """An ordinary loop of a new optimizer, after which nothing is looked into any more."""
    model, optimizer = parts(clock)
    for _ in range(60):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not engine.state.watchers.time.busy


def epochs(clock: Clock, count: int, ends: Callable[[nn.Module], Any]) -> None:
    model, optimizer = parts(clock)
    for _ in range(count):
        for (x,) in DataLoader(TensorDataset(torch.ones(40, 8)), batch_size=4):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        ends(model)


def draws(model: Any) -> None:
    model.clock.sleep(0.05)  # draws


def validates(model: nn.Module) -> None:
    with torch.no_grad():
        for x in torch.ones(800, 4, 8):
            model(x).sum()


def test_what_is_done_between_short_epochs(watched, clock):
    epochs(clock, 30, draws)
    (finding,) = findings(watched, "TPT005")
    assert finding.line == here(draws, "# draws")


def test_validation_between_epochs_is_no_stall(watched, clock):
    epochs(clock, 12, validates)
    assert not findings(watched, "TPT005")


def reading(steps: int, clock: Clock) -> float:
    model, optimizer = parts(clock)
    total = 0.0
    for _ in range(steps):
        out = model(torch.ones(256, 8))
        out.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        for value in out.detach().flatten():
            total += value.item()  # reads
    return total


@pytest.mark.slow
def test_a_line_that_reads(watched, clock):
    reading(600, clock)
    (finding,) = findings(watched, "TPT002")
    assert finding.line == here(reading, "# reads") and finding.evidence["reads"] == 256
    assert "item" not in torch.Tensor.__dict__


def test_a_healthy_loop_says_nothing(watched, clock):
    model, optimizer = parts(clock)
    losses = []
    for _ in range(150):
        loss = model(torch.ones(64, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    for code in ("TPT001", "TPT002", "TPT004", "TPT005"):
        assert not findings(watched, code)


def test_nothing_happens_unless_asked_for(make_engine, clock):
    engine = make_engine(replace(WATCHED, watchers=WatcherSettings(memory=False, time=False)))
    growing(40, clock)
    assert engine.state.watchers.time is None and not engine.memory.of_kind("line_times")


def test_two_optimizers_and_two_lines_make_one_turn(watched, clock):
    model, optimizer = parts(clock)
    other, second = parts(clock)
    for _ in range(60):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        other(torch.ones(4, 8)).sum().backward()
        second.step()
        optimizer.step()
        optimizer.zero_grad()
        second.zero_grad()
    for code in ("TPT001", "TPT002", "TPT004", "TPT005"):
        assert not findings(watched, code)


def test_what_is_recorded_is_small_and_never_a_verdict(watched, clock):
    growing(100, clock)
    stalling(120, clock)
    reading(100, clock)
    recorded = [data for kind, _, data in watched.memory.events if kind in KINDS]
    assert {data.get("look") for data in recorded} >= {"reference", "slow", "look", None}
    for data in recorded:
        text = json.dumps(data)
        assert len(text) < 16_000 and "TPT" not in text


def test_looks_come_again_less_and_less_often_while_the_symptom_lasts(watched, clock):
    growing(260, clock)
    events = watched.memory.events
    steps = [step for kind, step, data in events if kind in KINDS and data.get("look") == "slow"]
    gaps = [b - a for a, b in pairwise(steps)]
    assert len(gaps) >= 3 and gaps[-1] > 2 * gaps[0]


def test_an_iterator_in_the_place_of_the_last_one_begins_an_epoch():
    class Rows:
        pass

    feed, places = LoopLoader(), set[int]()
    for step in range(20):
        rows = Rows()
        places.add(id(rows))
        feed.fetched(rows)
        feed.stepped(step)
        del rows
    assert len(places) < 20
    assert feed.passes == 20


def test_a_loop_that_goes_on_after_a_validation_begins_no_epoch():
    class Rows:
        pass

    feed, train = LoopLoader(), Rows()
    for step in range(20):
        feed.fetched(train)
        feed.stepped(step)
        if step % 5 == 4:
            feed.fetched(Rows())
    assert feed.passes == 1
