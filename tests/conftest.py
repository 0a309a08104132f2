"""What many tests need: rows as a training leaves them, faults put in, and run folders of them."""

from __future__ import annotations

import gc
import itertools
import operator
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import hypothesis
import numpy as np
import pytest
from numpy.lib.recfunctions import repack_fields

from holdfast.detectors.judge import Judge
from holdfast.records.columns import COLUMNS
from holdfast.run import (
    DECLARATION,
    EVENT,
    FIRST_ROW,
    LaneWriter,
    Run,
    encode,
    rank_of,
)
from holdfast.types import Event

# Whatever is installed beside holdfast, its own tests and the scripts they start go without.
os.environ["HOLDFAST_PLUGINS"] = "none"

# Fewer examples than hypothesis would try, and no clock: two cores run everything in minutes.
hypothesis.settings.register_profile("minutes", max_examples=40, deadline=None)
hypothesis.settings.load_profile("minutes")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Nothing that is collected is garbage: looking for it would take a third of the time.

    Nor is it looked through later, by the collector or by a guard in search of models.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        if "torch" in sys.modules:
            import torch._dynamo  # noqa: F401 # the first optimizer would, and it is large
        gc.freeze()
        gc.enable()


DTYPE = np.dtype([("step", "<i8"), ("time", "<f8"), *((name, "<f4") for name in COLUMNS)])

MakeRows = Callable[..., Any]


def healthy(count: int, *, start: int = 0, seed: int = 0) -> Any:
    """Rows of a run in which nothing is wrong."""
    noise = np.random.default_rng(seed)
    rows = np.zeros(count, dtype=DTYPE)
    rows["step"] = np.arange(start, start + count)
    rows["time"] = 1.7e9 + rows["step"] * 0.01
    rows["loss"] = 2.0 * np.exp(-rows["step"] / 2000) + 0.1 * noise.random(count)
    rows["grad_norm"] = 1.0 + noise.random(count)
    rows["lr"] = 1e-3
    rows["backwards"] = 1
    unknown = ("grad_max", "scale", "param_bad", "input_bad", "h2d", "collective")
    for name in (*unknown, "guard_device", "guard_hidden", "losses"):
        rows[name] = np.nan
    rows["param_bad"][rows["step"] % 128 == 0] = 0
    for name in ("grad_layer", "param_layer", "buffer_layer", "worker"):
        rows[name] = -1
    phases = {"data_wait": 1, "forward": 3, "backward": 4, "optimizer": 1.5, "other": 0.5}
    for name, milliseconds in phases.items():
        rows[name] = milliseconds / 1000
    rows["guard"] = 5e-5
    rows["rss"] = 5e8
    # A scale that fits every loss from here to the end of a long run.
    rows["loss_baseline"], rows["loss_limit"] = 1.0, 10.0
    rows["norm_baseline"], rows["norm_limit"] = 1.5, 15.0
    rows["clip"] = 1
    rows["batch"] = noise.integers(0, 1 << 24, count)
    return rows


def make(count: int = 8, *, start: int = 0, seed: int = 0, **columns: Any) -> Any:
    """Healthy rows with some columns replaced: by one value, a sequence, or ``{index: value}``."""
    rows = healthy(count, start=start, seed=seed)
    for name, value in columns.items():
        if isinstance(value, Mapping):
            for index, one in value.items():
                rows[name][index] = one
        else:
            rows[name] = value
    return rows


@pytest.fixture(scope="session")
def make_rows() -> MakeRows:
    """A function that makes rows: ``make_rows(8, loss_bad={3: 1})``."""
    return make


@pytest.fixture(scope="session")
def step_columns() -> list[str]:
    """Every column of the steps table besides step and time."""
    return list(COLUMNS)


def record(
    run: Run, rows: Any, *, lane: str = "r0", events: Any = (), batches: Any = (), end: bool = True
) -> None:
    """Write one lane of a run as a training and its parent would: rows, events, findings."""
    rank = rank_of(lane)
    reported = [
        _event("start", rank, 0, pid=1, rank=rank, world=1, torch="2.13.0", device="cpu"),
        _event("optimizer", rank, 0, opt=0, cls="AdamW", how="fused", why="it can",
               layers=["encoder.weight", "head.bias"], buffers=["bn.running_mean"]),
        *events,
    ]  # fmt: skip
    if end:
        skipped = int((rows["skipped"] > 0).sum())
        reported.append(_event("end", rank, len(rows), steps=len(rows), skipped=skipped))
    rows = repack_fields(rows)  # a selection of columns keeps the gaps of the others
    form = [[name, rows.dtype[name].str] for name in rows.dtype.names]
    records = [(DECLARATION, encode({"id": FIRST_ROW, "table": "steps", "dtype": form}))]
    records += [(EVENT, encode(event.to_dict())) for event in reported]
    records += [(EVENT + 1, encode(batch)) for batch in batches]
    records += [(FIRST_ROW, row.tobytes()) for row in rows]
    writer = LaneWriter(run, lane)
    writer.take(records)
    judge = Judge(rank=rank)
    judge.feed(rows, reported, list(batches))
    judge.close()
    writer.write_findings(judge.findings)
    writer.close()


def _event(kind: str, rank: int, step: int, /, **data: Any) -> Event:
    return Event(time=1.7e9, rank=rank, step=step, kind=kind, data=data)


@pytest.fixture(scope="session")
def make_event() -> Callable[..., Event]:
    """``make_event("exception", rank, step, type="ValueError", ...)``."""
    return _event


@pytest.fixture
def make_run(tmp_path: Any) -> Callable[..., Run]:
    """A run folder with one recorded lane: ``make_run(rows, exit_code=1, events=[...])``."""

    def make_one(
        rows: Any = None, *, name: str = "run", finished: bool = True, **given: Any
    ) -> Run:
        meta = {"script": "train.py", "command": ["train.py", "--epochs", "3"], "holdfast": "0.1.0"}
        meta |= given.pop("meta", {})
        exit_code = given.pop("exit_code", 0)
        run = Run.create(tmp_path / name, meta)
        record(run, make(20) if rows is None else rows, **given)
        if finished:
            run.update_meta(status="finished", exit_code=exit_code)
        return run

    return make_one


@pytest.fixture(scope="session")
def record_lane() -> Callable[..., None]:
    """Adds a lane to a run: ``record_lane(run, rows, lane="r1")``."""
    return record


class Clock:
    """A clock for tests: it moves a little each time it is read, and by what is slept.

    Made of builtins alone: an exam that follows the lines of a loop must find none of ours.
    """

    TICK = 5e-6

    def __init__(self) -> None:
        slept = np.zeros(())
        ticks = itertools.count(1000.0, self.TICK)
        self.read = map(operator.add, ticks, iter(slept.item, None)).__next__
        self.busy = itertools.count(0.0, self.TICK).__next__
        self.sleep = slept.__iadd__


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """All of holdfast that is imported measures durations with this clock."""
    made = Clock()
    real = {"perf_counter": time.perf_counter, "thread_time": time.thread_time}
    fake = {"perf_counter": made.read, "thread_time": made.busy}
    stand_in = SimpleNamespace(**(vars(time) | fake | {"time": made.read}))
    for name, module in list(sys.modules.items()):
        if not name.startswith("holdfast."):
            continue
        if getattr(module, "time", None) is time:
            monkeypatch.setattr(module, "time", stand_in)
        for function, ours in fake.items():
            if getattr(module, function, None) is real[function]:
                monkeypatch.setattr(module, function, ours)
    # Nor does another process take any of its time.
    queue = "holdfast.diagnosis.throughput.run_queue.RunQueue"
    monkeypatch.setattr(f"{queue}.waited", lambda self: 0.0)
    return made
