from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.errors import RunFolderError
from holdfast.run import (
    BATCH,
    EVENT,
    LaneReader,
    LaneWriter,
    Ring,
    Run,
    encode,
    read_run,
)
from holdfast.types import Event, Finding, Severity

pytestmark = pytest.mark.timeout(60)


def finding(code: str, step: int, message: str, rank: int = 0) -> Finding:
    return Finding(
        code=code, name="n", severity=Severity.WARNING, step=step, message=message,
        advice="a", rank=rank,
    )  # fmt: skip


def event(step: int, kind: str = "tick") -> tuple[int, bytes]:
    return EVENT, encode(Event(time=0.0, rank=0, step=step, kind=kind).to_dict())


def test_a_run_is_read_lane_by_lane(run: Run, steps: Any) -> None:
    for lane, count in (("r10", 3), ("r2", 2), ("r2-p99", 1)):
        writer = LaneWriter(run, lane)
        writer.take([steps.declaration(), *steps.rows(0, count), event(7), (BATCH, b'{"step":7}')])
        writer.write_findings([finding("NUM001", 7, "m", rank=2)])
        writer.close()
    data = read_run(run)
    assert [(d.lane, d.rank, len(d.steps)) for d in data] == [
        ("r2", 2, 2), ("r2-p99", 2, 1), ("r10", 10, 3),
    ]  # fmt: skip
    assert data[0].batches == [{"step": 7}]
    assert data[0].events[0].step == 7
    assert data[0].findings[0].severity is Severity.WARNING
    assert data[0].corrupt == 0
    assert not data[0].empty


def test_a_claimed_lane_is_empty_not_broken(run: Run) -> None:
    run.claim_lane(0, 1)
    data = LaneReader(run, "r0").read()
    assert data.empty
    assert data.steps.dtype.names == ("step", "time")
    assert LaneReader(run, "r0").tail().poll().empty
    Ring.create(run.ring_path("r0"), 4096)
    assert LaneReader(run, "r0").read().empty


def test_an_unknown_lane_is_an_error(run: Run) -> None:
    run.claim_lane(0, 1)
    with pytest.raises(RunFolderError, match=r"lane 'r7' is not among \['r0'\]"):
        LaneReader(run, "r7")


def test_the_last_word_on_a_finding_counts(run: Run) -> None:
    writer = LaneWriter(run, "r0")
    writer.write_findings([finding("A", 1, "first"), finding("B", 1, "other")])
    writer.write_findings([finding("A", 1, "last"), finding("A", 1, "elsewhere", rank=1)])
    writer.close()
    found = LaneReader(run, "r0").findings()
    assert [f.message for f in found] == ["last", "other", "elsewhere"]


def test_columns_that_came_later_are_nan_before(run: Run, steps: Any, supply: Any) -> None:
    more = supply("steps", 16, [*steps.columns, ["lr", "<f4"]])
    writer = LaneWriter(run, "r0")
    writer.take([steps.declaration(), *steps.rows(0, 3), more.declaration(), *more.rows(3, 3)])
    rows = LaneReader(run, "r0").steps()
    assert rows["step"].tolist() == list(range(6))
    assert np.isnan(rows["lr"]).tolist() == [True] * 3 + [False] * 3


def test_rows_still_in_the_ring_are_read_with_columns_declared_anywhere(
    run: Run, steps: Any, supply: Any
) -> None:
    ring = Ring.create(run.ring_path("r0"), 1 << 16)
    ring.put(*steps.declaration())
    for record in steps.rows(0, 5):
        ring.put(*record)
    writer = LaneWriter(run, "r0", ring=Ring.attach(run.ring_path("r0")))
    writer.drain()
    wide = supply("steps", 16, [*steps.columns, ["lr", "<f4"]])
    layers = supply("layers", 17)
    records = [*steps.rows(5, 2), (16, b"bad"), wide.declaration(), layers.declaration(),
               *wide.rows(7, 2), *layers.rows(0, 4), event(9), (BATCH, b'{"step":9}'),
               (3, b"nonsense")]  # fmt: skip
    for record in records:
        ring.put(*record)
    data = LaneReader(run, "r0").read()
    assert data.steps["step"].tolist() == list(range(9))
    assert np.isnan(data.steps["lr"]).tolist() == [True] * 7 + [False] * 2
    assert data.tables["layers"]["step"].tolist() == [0, 1, 2, 3]
    assert [e.step for e in data.events] == [9]
    assert data.batches == [{"step": 9}]
    assert LaneReader(run, "r0").table("layers")["step"].tolist() == [0, 1, 2, 3]
    assert len(LaneReader(run, "r0").table("unknown")) == 0


def test_torn_ends_are_passed_over_in_silence(run: Run, steps: Any) -> None:
    writer = LaneWriter(run, "r0")
    writer.take([steps.declaration(), *steps.rows(0, 3), event(1), event(2)])
    writer.write_findings([finding("A", 1, "m")])
    writer.close()
    for cut, name in ((5, "steps.r0.000000.bin"), (3, "events.r0.jsonl")):
        path = run.path / name
        path.write_bytes(path.read_bytes()[:-cut])
    data = LaneReader(run, "r0").read()
    assert data.steps["step"].tolist() == [0, 1]
    assert [e.step for e in data.events] == [1]
    assert data.corrupt == 0


def test_garbage_in_the_middle_of_a_stream_is_counted(run: Run) -> None:
    line = encode(finding("A", 1, "m").to_dict())
    bad = b'{"code":"X","severity":"no such word"}'
    run.stream_path("findings", "r0").write_bytes(
        b"\n".join([line, b"\x00garbage", bad, b"{}", line]) + b"\n"
    )
    run.stream_path("events", "r0").write_bytes(b'{"kind":"no time"}\n{"x\n')
    data = LaneReader(run, "r0").read()
    assert len(data.findings) == 1
    assert data.corrupt == 4


@pytest.mark.parametrize("name", ["steps.r0.000000.bin", "ring.r0.bin", "events.r0.jsonl"])
def test_a_broken_file_is_named(run: Run, name: str) -> None:
    if name.endswith("jsonl"):
        (run.path / name).mkdir()
    else:
        (run.path / name).write_bytes(b"garbage" * 10_000)
    with pytest.raises(RunFolderError) as caught:
        LaneReader(run, "r0").read()
    assert name in str(caught.value)
    assert str(run.path) in str(caught.value)


def test_numpy_and_json_alone_can_read_a_run(run: Run, steps: Any) -> None:
    writer = LaneWriter(run, "r0")
    writer.take([steps.declaration(), *steps.rows(0, 100, bad=[42]), event(3)])
    writer.close()
    script = """
import json, sys
import numpy as np
folder = sys.argv[1]
path = folder + "/steps.r0.000000.bin"
with open(path, "rb") as file:
    header = json.loads(file.readline())
rows = np.memmap(path, dtype=[tuple(c) for c in header["dtype"]], offset=header["offset"], mode="r")
with open(path, "ab") as file:
    file.write(b"torn")
again = np.fromfile(path, [tuple(c) for c in header["dtype"]], offset=header["offset"])
assert (again == rows).all()
with open(folder + "/events.r0.jsonl") as file:
    events = [json.loads(line) for line in file]
with open(folder + "/run.json") as file:
    meta = json.load(file)
assert not any(name.startswith("holdfast") for name in sys.modules)
print(json.dumps([len(rows), int(rows["step"][rows["skipped"] > 0][0]), events[0]["step"],
                  meta["script"]]))
"""
    # -I: no PYTHONPATH, no current folder; the site folder stays, numpy lives there.
    out = subprocess.run(
        [sys.executable, "-I", "-c", script, str(run.path)], check=True, capture_output=True
    )
    assert json.loads(out.stdout) == [100, 42, 3, "train.py"]


def test_a_tail_gives_only_what_is_new(run: Run, steps: Any, supply: Any) -> None:
    writer = LaneWriter(run, "r0", segment_rows=10)
    layers = supply("layers", 17)
    writer.take([steps.declaration(), *steps.rows(0, 3), event(1)])
    tail = LaneReader(run, "r0").tail()
    first = tail.poll()
    assert first.steps["step"].tolist() == [0, 1, 2]
    assert [e.step for e in first.events] == [1]
    assert tail.poll().empty
    writer.take([*steps.rows(3, 30), layers.declaration(), *layers.rows(0, 2)])
    writer.write_findings([finding("A", 1, "m")])
    second = tail.poll()
    assert second.steps["step"].tolist() == list(range(3, 33))
    assert second.tables["layers"]["step"].tolist() == [0, 1]
    assert [f.code for f in second.findings] == ["A"]
    assert second.events == []
    assert tail.poll().empty
    wide = supply("steps", 16, [*steps.columns, ["lr", "<f4"]])
    writer.take([wide.declaration(), *wide.rows(33, 1), (BATCH, b'{"step":5}')])
    writer.write_findings([finding("A", 1, "changed")])
    third = tail.poll()
    assert third.steps["lr"].tolist() == [33.0]
    assert third.batches == [{"step": 5}]
    assert third.findings[0].message == "changed"


def test_a_tail_waits_for_a_torn_row_and_line_to_be_completed(run: Run, steps: Any) -> None:
    writer = LaneWriter(run, "r0")
    writer.take([steps.declaration(), *steps.rows(0, 2), event(1)])
    tail = LaneReader(run, "r0").tail()
    tail.poll()
    row, line = steps.array(2, 1).tobytes(), event(2)[1] + b"\n"
    for name, data in (("steps.r0.000000.bin", row), ("events.r0.jsonl", line)):
        with (run.path / name).open("ab") as file:
            file.write(data[:10])
    assert tail.poll().empty
    for name, data in (("steps.r0.000000.bin", row), ("events.r0.jsonl", line)):
        with (run.path / name).open("ab") as file:
            file.write(data[10:])
    new = tail.poll()
    assert new.steps["step"].tolist() == [2]
    assert [e.step for e in new.events] == [2]


@pytest.mark.parametrize("every", [1, 3, 40])
def test_a_tail_survives_rotation_and_thinning(run: Run, steps: Any, every: int) -> None:
    writer = LaneWriter(run, "r0", 20_000, segment_rows=100)
    writer.take([steps.declaration()])
    tail = LaneReader(run, "r0").tail()
    seen: list[int] = []
    for number in range(150):
        writer.take(steps.rows(number * 30, 30))
        if number % every == 0:
            seen += tail.poll().steps["step"].tolist()
    writer.close()
    seen += tail.poll().steps["step"].tolist()
    assert tail.poll().empty
    assert seen == sorted(set(seen)), "nothing twice, all in order"
    assert seen[-1] == 150 * 30 - 1
    kept = LaneReader(run, "r0").steps()["step"].tolist()
    assert set(kept) <= set(seen), "nothing missed that is still there"
    if every <= 3:
        assert seen == list(range(150 * 30)), "nor anything else, by one who keeps up"


def test_reading_while_another_thread_drains_and_thins(run: Run, steps: Any) -> None:
    ring = Ring.create(run.ring_path("r0"), 1 << 16)
    ring.put(*steps.declaration())
    writer = LaneWriter(run, "r0", 30_000, ring=Ring.attach(run.ring_path("r0")), segment_rows=150)
    total, done = 12_000, threading.Event()

    def train() -> None:
        try:
            for first in range(0, total, 50):
                for record in steps.rows(first, 50):
                    ring.put(*record)
                writer.drain()
        finally:
            done.set()

    thread = threading.Thread(target=train)
    thread.start()
    reader, tail, seen, last = LaneReader(run, "r0"), LaneReader(run, "r0").tail(), [], -1
    reads = 0
    while not done.is_set():
        rows = reader.steps()["step"]
        assert np.all(np.diff(rows) > 0), "doubled or out of order"
        if len(rows):
            assert rows[-1] >= last, "went backwards"
            last = rows[-1]
        seen += tail.poll().steps["step"].tolist()
        reads += 1
    thread.join()
    seen += tail.poll().steps["step"].tolist()
    assert reads > 3
    assert ring.dropped == 0
    assert reader.steps()["step"][-1] == total - 1
    assert seen == sorted(set(seen))
    assert seen[-1] == total - 1
    assert writer.errors == 0


def test_reading_needs_no_right_to_write(run: Run, steps: Any) -> None:
    ring = Ring.create(run.ring_path("r0"), 4096)
    ring.put(*steps.declaration())
    ring.put(*steps.rows(0, 1)[0])
    before = {path.name: path.stat().st_mtime_ns for path in run.path.iterdir()}
    run.ring_path("r0").chmod(0o400)
    run.path.chmod(0o500)
    try:
        assert len(LaneReader(run, "r0").steps()) == 1
        assert len(LaneReader(Run.open(run.path), "r0").steps()) == 1
    finally:
        run.path.chmod(0o700)
    assert before == {path.name: path.stat().st_mtime_ns for path in Path(run.path).iterdir()}
