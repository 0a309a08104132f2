"""No row is lost or doubled when the process that drains a ring dies."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

from holdfast.run import (
    BATCH,
    EVENT,
    LaneReader,
    LaneWriter,
    Ring,
    Run,
    encode,
)
from holdfast.run.mark import Mark
from holdfast.run.streams import Stream
from holdfast.types import Event

pytestmark = pytest.mark.timeout(60)


def event(step: int) -> tuple[int, bytes]:
    return EVENT, encode(Event(time=0.0, rank=0, step=step, kind="tick").to_dict())


def test_notes_come_back() -> None:
    mark = Mark({"steps": (3, 17)}, {"events": 400})
    assert Mark.decode(mark.encode()) == mark
    for nonsense in (b"", b"{}", b"[]", b'{"tables":{"a":1},"streams":{}}', b"\xff"):
        assert Mark.decode(nonsense) is None


class Lane:
    """A ring and what was put into it."""

    def __init__(self, run: Run, steps: Any, capacity: int = 1 << 16) -> None:
        self.run, self.steps = run, steps
        self.ring = Ring.create(run.ring_path("r0"), capacity)
        self.ring.put(*steps.declaration())
        self.count = 0

    def put(self, count: int) -> None:
        for record in self.steps.rows(self.count, count):
            assert self.ring.put(*record)
        assert self.ring.put(*event(self.count))
        assert self.ring.put(BATCH, b'{"step":%d}' % self.count)
        self.count += count

    def writer(self, **options: Any) -> LaneWriter:
        ring = Ring.attach(self.run.ring_path("r0"))
        return LaneWriter(self.run, "r0", ring=ring, **options)

    def check(self, every: int) -> None:
        data = LaneReader(self.run, "r0").read()
        assert data.steps.tobytes() == self.steps.array(0, self.count).tobytes()
        assert [e.step for e in data.events] == list(range(0, self.count, every))
        assert [b["step"] for b in data.batches] == list(range(0, self.count, every))


@pytest.mark.parametrize("deaths", ["before append", "after append"])
@pytest.mark.parametrize("segment_rows", [1000, 25, 20, 7])
def test_a_death_between_append_and_commit(
    run: Run, steps: Any, monkeypatch: pytest.MonkeyPatch, deaths: str, segment_rows: int
) -> None:
    lane = Lane(run, steps)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    writer = lane.writer(segment_rows=segment_rows)
    for _ in range(6):
        lane.put(20)
        lane.check(20)
        writer = lane.writer(segment_rows=segment_rows)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            target = (Ring, "commit") if deaths == "after append" else (LaneWriter, "_write")
            patch.setattr(*target, die)
            writer.drain()
        lane.check(20)
        lane.put(20)
        lane.check(20)
        writer = lane.writer(segment_rows=segment_rows)
        writer.drain()
        lane.check(20)
    assert writer.close()
    assert Ring.attach(run.ring_path("r0")).peek() == []
    run.remove_ring("r0")
    lane.check(20)


def test_rows_held_back_by_a_full_disk_stay_in_the_ring(
    run: Run, steps: Any, full_disk: Callable[[int], AbstractContextManager[None]]
) -> None:
    lane = Lane(run, steps)
    lane.put(20)
    writer = lane.writer()
    writer.drain()
    with full_disk(4096 + 30 * steps.dtype.itemsize):
        for _ in range(4):
            lane.put(20)
            rows = writer.drain().rows
            assert rows is not None
            assert len(rows) == 20, "each row is told once"
        assert writer.pending
        lane.check(20)
    # The draining process dies here; its memory is gone, the ring is not.
    writer = lane.writer()
    rows = writer.drain().rows
    assert rows is not None
    assert len(rows) == 80
    lane.check(20)


def test_a_full_disk_for_ever_drops_in_the_ring_and_is_bounded(
    run: Run, steps: Any, full_disk: Callable[[int], AbstractContextManager[None]]
) -> None:
    lane = Lane(run, steps, capacity=8192)
    writer = lane.writer()
    with full_disk(4096):
        for first in range(0, 5000, 10):
            for record in steps.rows(first, 10):
                lane.ring.put(*record)
            writer.drain()
    assert lane.ring.dropped > 4000
    assert writer.close()
    kept = LaneReader(run, "r0").steps()
    assert kept.tobytes() == steps.array(0, len(kept)).tobytes()
    assert len(kept) + lane.ring.dropped == 5000


def test_nothing_is_thinned_before_it_is_marked(
    run: Run, steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows get through to the disk, events do not, and then the draining process dies."""
    lane = Lane(run, steps, capacity=1 << 20)
    writer = lane.writer(budget_bytes=20_000, segment_rows=60)
    lane.put(50)
    writer.drain()

    def fail(self: Stream) -> None:
        if self.pending:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Stream, "write", fail)
        for _ in range(40):
            lane.put(50)
            writer.drain()
        assert writer.pending
        lane.check(50)
    writer = lane.writer(budget_bytes=20_000, segment_rows=60)
    lane.check(50)
    writer.drain()
    lane.check(50)
    assert writer.close()
    assert np.all(np.diff(LaneReader(run, "r0").steps()["step"]) > 0)


def test_a_reader_that_holds_an_old_mark_looks_again(
    run: Run, steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = Lane(run, steps, capacity=1 << 20)
    writer = lane.writer(budget_bytes=20_000, segment_rows=50)
    lane.put(60)
    writer.drain()
    lane.put(10)  # in the ring at the first look, in a thinned segment soon after
    reader = LaneReader(run, "r0")
    look = LaneReader._undrained  # pyright: ignore[reportPrivateUsage]

    def slow_look(self: LaneReader) -> Any:
        monkeypatch.setattr(LaneReader, "_undrained", look)
        seen = look(self)
        for _ in range(100):
            lane.put(30)
            writer.drain()
        return seen

    monkeypatch.setattr(LaneReader, "_undrained", slow_look)
    rows = reader.steps()["step"]
    assert np.all(np.diff(rows) > 0)
    assert rows[-1] == lane.count - 1


def test_own_events_of_the_watcher_are_seen_at_once(run: Run, steps: Any) -> None:
    lane = Lane(run, steps)
    lane.put(5)
    writer = lane.writer()
    writer.drain()
    writer.write_events([Event(time=0.0, rank=0, step=99, kind="signal")])
    assert [e.step for e in LaneReader(run, "r0").events()] == [0, 99]
    assert [e.step for e in LaneReader(run, "r0").tail().poll().events] == [0, 99]


def test_a_ring_drained_by_hand_marks_nothing_and_deletes_nothing(run: Run, steps: Any) -> None:
    lane = Lane(run, steps)
    lane.put(5)
    by_hand = LaneWriter(run, "r0")
    by_hand.take(Ring.attach(run.ring_path("r0")).drain())
    by_hand.close()
    lane.check(5)
    lane.put(5)
    writer = lane.writer()
    lane.check(5)
    writer.drain()
    lane.check(5)


DRAINER = """
import pathlib, sys
from holdfast.run import LaneWriter, Ring, Run
run = Run.open(sys.argv[1])
writer = LaneWriter(run, "r0", ring=Ring.attach(run.ring_path("r0")), segment_rows=300)
print("ready", flush=True)
while True:
    writer.drain()
"""


def test_kill_9_of_the_draining_process_at_random_instants(run: Run, steps: Any) -> None:
    lane = Lane(run, steps, capacity=1 << 23)
    luck = random.Random(time.time_ns())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(6):
        command = [sys.executable, "-c", DRAINER, str(run.path)]
        child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        for _ in range(luck.randrange(10, 200)):
            lane.put(10)
        child.kill()
        child.wait()
        child.stdout.close()
        lane.check(10)
    writer = lane.writer(segment_rows=300)
    writer.drain()
    assert writer.close()
    run.remove_ring("r0")
    lane.check(10)
    assert lane.count > 300
