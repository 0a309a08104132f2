from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
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
    decode,
    encode,
)
from holdfast.run import durable as durable_module
from holdfast.run import writer as writer_module
from holdfast.run.segments import SegmentedTable
from holdfast.run.table import Declaration, load_segment
from holdfast.types import Event, Finding, Severity

pytestmark = pytest.mark.timeout(60)
Limit = Callable[[int], AbstractContextManager[None]]


def event(step: int, kind: str = "start") -> Event:
    return Event(time=1.5, rank=0, step=step, kind=kind, data={"loss": "NaN"})


def finding(step: int) -> Finding:
    return Finding(
        code=f"NUM{step:03d}", name="nonfinite_loss", severity=Severity.ERROR, step=step,
        message="loss is NaN", advice="look", evidence={"loss": float("nan")},
    )  # fmt: skip


def size_of(run: Run, table: str = "steps") -> int:
    return sum(path.stat().st_size for path in run.table_paths(table, "r0"))


def test_take_writes_and_tells_what_it_took(run: Run, steps: Any, supply: Any) -> None:
    layers = supply("layers", 17, [["step", "<i8"], ["time", "<f8"], ["fc.weight", "<f4"]])
    writer = LaneWriter(run, "r0")
    taken = writer.take(
        [
            steps.declaration(), layers.declaration(), *steps.rows(0, 2), *layers.rows(0, 1),
            (EVENT, encode(event(3).to_dict())), (BATCH, b'{"step":3,"indices":[1,2]}'),
            *steps.rows(2, 1),
        ]
    )  # fmt: skip
    assert taken.rows is not None
    assert taken.rows.tobytes() == steps.array(0, 3).tobytes()
    assert taken.tables["layers"].tobytes() == layers.array(0, 1).tobytes()
    assert taken.events == [event(3)]
    assert taken.batches == [{"step": 3, "indices": [1, 2]}]
    writer.write_findings([finding(3)])
    assert writer.close()
    assert sorted(os.listdir(run.path)) == [
        "batches.r0.jsonl", "events.r0.jsonl", "findings.r0.jsonl", "layers.r0.000000.bin",
        "run.json", "steps.r0.000000.bin",
    ]  # fmt: skip
    reader = LaneReader(run, "r0")
    assert reader.steps().tobytes() == steps.array(0, 3).tobytes()
    assert reader.events() == [event(3)]
    assert reader.findings()[0].evidence == {"loss": "NaN"}
    assert (writer.errors, writer.corrupt, writer.lost) == (0, 0, 0)


def test_nothing_taken_makes_no_files(run: Run) -> None:
    writer = LaneWriter(run, "r0")
    taken = writer.take([])
    assert (taken.rows, taken.tables, taken.events, taken.batches) == (None, {}, [], [])
    writer.write_findings([])
    writer.flush()
    assert writer.close()
    assert os.listdir(run.path) == ["run.json"]


def test_one_write_per_file_and_drain(
    run: Run, steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LaneWriter(run, "r0")
    writer.take([steps.declaration()])
    writes: list[int] = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: (writes.append(fd), write(fd, data))[1])
    records = [*steps.rows(0, 500)] + [(EVENT, encode(event(k).to_dict())) for k in range(50)]
    writer.take(records)
    assert len(writes) == len(set(writes)) == 2


def test_segments_are_sealed_when_full_and_when_columns_change(
    run: Run, steps: Any, supply: Any
) -> None:
    writer = LaneWriter(run, "r0", segment_rows=100)
    writer.take([steps.declaration(), *steps.rows(0, 250)])
    writer.take([steps.declaration(), *steps.rows(250, 10)])  # the same again changes nothing
    other = supply("steps", 16, [["step", "<i8"], ["time", "<f8"], ["lr", "<f4"]])
    taken = writer.take([*steps.rows(260, 5), other.declaration(), *other.rows(265, 5)])
    writer.take([other.declaration(names=["a"]), *other.rows(270, 5)])
    writer.close()
    segments = [load_segment(path)[0] for path in run.table_paths("steps", "r0")]
    shape = [(s.number, s.start, s.rows) for s in segments]
    assert shape == [(0, 0, 100), (1, 100, 100), (2, 200, 65), (3, 265, 5), (4, 270, 5)]
    assert segments[4].declaration.extra == {"names": ["a"]}
    assert taken.rows is not None
    assert taken.rows["step"].tolist() == list(range(260, 270))
    assert taken.rows.dtype.names == ("step", "time", "loss", "skipped", "lr")
    assert np.isnan(taken.rows["lr"][:5]).all()
    assert np.isnan(taken.rows["loss"][5:]).all()


def test_wide_rows_make_shorter_segments(run: Run, supply: Any) -> None:
    columns = [["step", "<i8"], ["time", "<f8"], *([f"w{k}", "<f4"] for k in range(252))]
    wide = supply("layers", 16, columns)
    writer = LaneWriter(run, "r0", budget_bytes=400_000)
    for first in range(0, 2000, 50):
        writer.take([wide.declaration(), *wide.rows(first, 50)])
    writer.close()
    assert size_of(run, "layers") <= 400_000 * 5 / 4 + 2 * 8192


def test_going_on_after_a_restart_of_the_writer(run: Run, steps: Any) -> None:
    for first in range(0, 250, 50):
        writer = LaneWriter(run, "r0", segment_rows=100)
        declaration = [steps.declaration()] if first == 0 else []
        writer.take([*declaration, *steps.rows(first, 50)])
        writer.close()
    assert LaneReader(run, "r0").steps().tobytes() == steps.array(0, 250).tobytes()
    assert len(run.table_paths("steps", "r0")) == 3


def test_torn_ends_are_cut_off_on_opening(run: Run, steps: Any) -> None:
    writer = LaneWriter(run, "r0")
    writer.take([steps.declaration(), *steps.rows(0, 3), (EVENT, encode(event(1).to_dict()))])
    writer.close()
    for name in ("steps.r0.000000.bin", "events.r0.jsonl"):
        with (run.path / name).open("ab") as file:
            file.write(b'{"torn')
    writer = LaneWriter(run, "r0")
    writer.take([*steps.rows(3, 2), (EVENT, encode(event(2).to_dict()))])
    writer.close()
    reader = LaneReader(run, "r0")
    assert reader.steps().tobytes() == steps.array(0, 5).tobytes()
    assert [e.step for e in reader.events()] == [1, 2]


def test_rows_beyond_the_mark_are_gone_even_if_the_columns_change_next(
    run: Run, steps: Any, supply: Any
) -> None:
    writer = LaneWriter(run, "r0")
    writer.take([steps.declaration(), *steps.rows(0, 5)])
    writer.close()
    table = SegmentedTable(run, "r0", "steps", budget=10**6, segment_rows=100, mark=(0, 3))
    other = supply("steps", 16, [["step", "<i8"], ["time", "<f8"], ["lr", "<f4"]])
    table.push(Declaration.from_dict(decode(other.declaration()[1])), other.rows(3, 1)[0][1])
    table.write()
    table.close()
    assert LaneReader(run, "r0").steps()["step"].tolist() == [0, 1, 2, 3]


def test_records_of_nonsense_are_counted_and_left_out(run: Run, steps: Any) -> None:
    writer = LaneWriter(run, "r0")
    taken = writer.take(
        [
            (99, b"row of no table"), steps.declaration(), (16, b"too short"), (7, b"{}"),
            (EVENT, b"not json"), (EVENT, b'{"kind":"no time"}'), (BATCH, b"[1]"), (3, b"{}"),
            (3, b'{"id":16,"table":"steps","dtype":[["step","O"]]}'), *steps.rows(0, 2),
        ]
    )  # fmt: skip
    assert writer.corrupt == 8
    assert taken.rows is not None
    assert len(taken.rows) == 2
    assert (taken.events, taken.batches) == ([], [])


def test_more_tables_than_can_be_marked_are_left_out(run: Run, supply: Any, tmp_path: Path) -> None:
    Ring.create(run.ring_path("r0"))
    writer = LaneWriter(run, "r0", ring=Ring.attach(run.ring_path("r0")))
    tables = [supply(f"layers{number}", 16 + number) for number in range(250)]
    writer.take([table.declaration() for table in tables])
    writer.take([table.rows(0, 1)[0] for table in tables])
    kept = len(LaneReader(run, "r0").read().tables)
    assert 100 < kept < 250
    assert writer.corrupt == 2 * (250 - kept)
    assert writer.errors == 0
    assert writer.close()


# A million steps.


@pytest.mark.slow
def test_a_million_steps_stay_within_the_documented_bound(
    run: Run, supply: Any, step_columns: list[str]
) -> None:
    columns = [["step", "<i8"], ["time", "<f8"], *([name, "<f4"] for name in step_columns)]
    steps = supply("steps", 16, columns)
    steps.array = _quick(steps)
    budget, segment_rows, each = 8 * 2**20, 15_000, 20_000
    writer = LaneWriter(run, "r0", budget, segment_rows=segment_rows)
    writer.take([steps.declaration()])
    incidents = [5, 77_777, 500_001, 999_001]
    bound = budget + segment_rows * steps.dtype.itemsize + 4096
    for first in range(0, 1_000_000, each):
        writer.take(steps.rows(first, each, incidents))
        assert size_of(run) <= bound + each * steps.dtype.itemsize + 3 * 4096
    assert writer.close()
    assert size_of(run) <= bound
    assert size_of(run) > budget / 2, "thinned more than needed"

    rows = LaneReader(run, "r0").steps()
    assert np.all(np.diff(rows["step"]) > 0)
    assert rows["step"][0] == 0
    assert rows["step"][-1] == 999_999
    assert rows["step"][rows["skipped"] > 0].tolist() == incidents
    for incident in incidents[1:]:
        near = set(range(incident - 8, incident + 9))
        assert near <= set(rows["step"].tolist()), "the neighbours of an incident"
    strides = [load_segment(path)[0].stride for path in run.table_paths("steps", "r0")]
    assert max(strides) >= 16
    assert np.diff(rows["step"]).max() <= 2 * max(strides), "no hole larger than the grain"
    assert len(strides) < 20, "merged, not only thinned"


def _quick(steps: Any) -> Any:
    def array(first: int, count: int, bad: Any = ()) -> Any:
        rows: Any = np.zeros(count, steps.dtype)
        rows["step"] = np.arange(first, first + count)
        rows["skipped"] = np.isin(rows["step"], bad)
        return rows

    return array


def test_thinning_holds_the_budget_when_every_row_is_bad(run: Run, steps: Any) -> None:
    writer = LaneWriter(run, "r0", 40_000, segment_rows=500)
    writer.take([steps.declaration()])
    for first in range(0, 10_000, 250):
        writer.take(steps.rows(first, 250, range(first, first + 250)))
    writer.close()
    assert size_of(run) <= 40_000 * 5 / 4 + 2 * 4096
    assert LaneReader(run, "r0").steps()["step"][0] == 0


def test_the_budget_holds_when_the_columns_change_all_the_time(run: Run, supply: Any) -> None:
    writer = LaneWriter(run, "r0", 60_000)
    for number in range(100):
        table = supply("steps", 16, [["step", "<i8"], ["time", "<f8"], [f"c{number}", "<f4"]])
        writer.take([table.declaration(), *table.rows(number * 3, 3)])
    writer.close()
    assert size_of(run) <= 60_000 + 2 * 4096
    assert LaneReader(run, "r0").steps()["step"][-1] == 299


def test_a_segment_merged_but_not_yet_removed_is_passed_over(
    run: Run, steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the two halves of a merge."""
    writer = LaneWriter(run, "r0", 10_000, segment_rows=50)

    unlink = Path.unlink

    def killed(self: Path, **options: Any) -> None:
        if self.suffix == ".bin":
            raise KeyboardInterrupt
        unlink(self, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "unlink", killed)
        for first in range(0, 10_000, 50):
            writer.take([steps.declaration(), *steps.rows(first, 50)])
    kept = LaneReader(run, "r0").steps()["step"]
    assert np.all(np.diff(kept) > 0)
    files = len(run.table_paths("steps", "r0"))
    again = LaneWriter(run, "r0", 10**9, segment_rows=50)
    assert len(run.table_paths("steps", "r0")) < files
    assert LaneReader(run, "r0").steps()["step"].tolist() == kept.tolist()
    again.close()


# Streams.


def truncated(run: Run) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for item in LaneReader(run, "r0").events():
        if item.kind == "truncated":
            found.setdefault(item.data["stream"], []).append(item.data["left_out"])
    return found


def test_streams_end_at_their_limit_and_say_how_much_is_missing(run: Run) -> None:
    writer = LaneWriter(run, "r0", stream_lines=100)
    for step in range(350):
        writer.take([(EVENT, encode(event(step).to_dict())), (BATCH, b'{"step":%d}' % step)])
    assert writer.close()
    reader = LaneReader(run, "r0")
    assert [b["step"] for b in reader.batches()] == list(range(100))
    assert [e.step for e in reader.events() if e.kind == "start"] == list(range(100))
    assert truncated(run)["batches"] == [1, 2, 4, 8, 16, 32, 64, 128, 250]
    assert truncated(run)["events"][-1] == 250
    assert len(reader.events()) < 100 + 2 * 20

    writer = LaneWriter(run, "r0", stream_lines=100)
    writer.take([(BATCH, b'{"step":%d}' % step) for step in range(10)])
    writer.close()
    assert truncated(run)["batches"][-1] == 260, "counting goes on after a restart"


def test_a_quarantined_sample_stands_in_a_file_of_its_own(run: Run, tmp_path: Path) -> None:
    ring = Ring.create(tmp_path / "ring", 1 << 16, owner="x", pid=1)
    reported = replace(event(7, "quarantine"), data={"index": 3, "file": "a.png"})
    ring.put(EVENT, encode(event(1).to_dict()))
    ring.put(EVENT, encode(reported.to_dict()))
    writer = LaneWriter(run, "r0", ring=ring)
    assert [e.kind for e in writer.drain().events] == ["start", "quarantine"]
    expected = {"step": 7, "time": 1.5, "index": 3, "file": "a.png"}
    path = run.stream_path("quarantine", "r0")
    assert [decode(line) for line in path.read_bytes().splitlines()] == [expected]
    # What a writer appended and died before marking is still in the ring: not written twice.
    path.write_bytes(path.read_bytes() + encode({**expected, "index": 4}) + b"\n")
    ring.put(EVENT, encode(replace(reported, data={**reported.data, "index": 4}).to_dict()))
    again = LaneWriter(run, "r0", ring=ring)
    again.drain()
    again.close()
    lines = [decode(line) for line in path.read_bytes().splitlines()]
    assert lines == [expected, {**expected, "index": 4}]
    assert run.lanes() == ["r0"]
    assert len(LaneReader(run, "r0").events()) == 3


def test_findings_are_never_left_out(run: Run) -> None:
    writer = LaneWriter(run, "r0", stream_lines=10)
    writer.write_findings([finding(step) for step in range(500)])
    writer.close()
    assert len(LaneReader(run, "r0").findings()) == 500


def test_evidence_that_json_cannot_hold_does_not_cost_the_finding(run: Run) -> None:
    writer = LaneWriter(run, "r0")
    loop: dict[str, Any] = {}
    loop["again"] = loop
    odd = [{"a": object()}, {"a": threading.Lock()}, {"a": {1, 2}}, loop]
    writer.write_findings([replace(finding(k), evidence=e) for k, e in enumerate(odd)])
    writer.write_events([replace(event(k), data=e) for k, e in enumerate(odd)])
    assert writer.close()
    assert writer.errors == 8
    reader = LaneReader(run, "r0")
    assert [f.step for f in reader.findings()] == [0, 1, 2, 3]
    assert [e.step for e in reader.events()] == [0, 1, 2, 3]
    assert reader.findings()[0].message == "loss is NaN"
    assert reader.findings()[0].evidence == {"unwritable": "TypeError"}


# A disk that fails.


def test_a_full_disk_loses_and_doubles_nothing(run: Run, steps: Any, full_disk: Limit) -> None:
    writer = LaneWriter(run, "r0")
    taken = [writer.take([steps.declaration(), *steps.rows(0, 10)])]
    itemsize = steps.dtype.itemsize
    # Room for the ten rows there are, three and a half more, and the start of an event.
    with full_disk(4096 + 13 * itemsize + 11):
        for first in range(10, 50, 10):
            taken.append(writer.take(steps.rows(first, 10)))
            assert (run.path / "steps.r0.000000.bin").stat().st_size == 4096 + 10 * itemsize
        assert writer.errors == 4
        assert "File too large" in writer.last_error
        assert writer.pending
        writer.flush()
        assert not writer.close()
    assert [len(t.rows) for t in taken if t.rows is not None] == [10] * 5
    taken.append(writer.take(steps.rows(50, 10)))
    assert not writer.pending
    assert writer.close()
    assert LaneReader(run, "r0").steps().tobytes() == steps.array(0, 60).tobytes()


def test_a_full_disk_while_a_segment_is_opened(run: Run, steps: Any, full_disk: Limit) -> None:
    writer = LaneWriter(run, "r0", segment_rows=10)
    with full_disk(100):
        writer.take([steps.declaration(), *steps.rows(0, 25), (EVENT, encode(event(1).to_dict()))])
        writer.write_findings([finding(1), finding(2)])
        assert writer.errors > 0
    writer.take(steps.rows(25, 10))
    assert writer.close()
    reader = LaneReader(run, "r0")
    assert reader.steps().tobytes() == steps.array(0, 35).tobytes()
    assert len(reader.findings()) == 2
    assert [e.step for e in reader.events()] == [1]
    assert not [name for name in os.listdir(run.path) if name.endswith(".tmp")]


@pytest.mark.parametrize("call", ["write", "fsync", "replace", "ftruncate", "open"])
def test_errors_of_the_disk_at_random_moments_do_no_harm(
    run: Run, steps: Any, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    luck = np.random.default_rng(7)
    real = getattr(os, call)
    on = False

    def moody(*arguments: Any, **options: Any) -> Any:
        if on and luck.random() < 0.4:
            if call == "write" and luck.random() < 0.7:
                return real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 3 + 1])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments, **options)

    writer = LaneWriter(run, "r0", segment_rows=40)
    monkeypatch.setattr(durable_module.os, call, moody)
    on = True
    for first in range(0, 1000, 10):
        records = [*steps.rows(first, 10), (EVENT, encode(event(first).to_dict()))]
        writer.take([steps.declaration(), *records] if first == 0 else records)
    on = False
    assert writer.close()
    if call != "ftruncate":
        assert writer.errors > 0
    reader = LaneReader(run, "r0")
    assert reader.steps().tobytes() == steps.array(0, 1000).tobytes()
    assert [e.step for e in reader.events()] == list(range(0, 1000, 10))


def test_thinning_on_a_full_disk_is_tried_again(run: Run, steps: Any, full_disk: Limit) -> None:
    writer = LaneWriter(run, "r0", 20_000, segment_rows=200)
    for first in range(0, 1000, 100):
        writer.take([steps.declaration(), *steps.rows(first, 100)])
    before = size_of(run)
    with full_disk(0):
        assert writer.take(steps.rows(1000, 200)).rows is not None
        writer.take([])
    assert writer.errors > 0
    writer.take([])
    for first in range(1200, 3000, 100):
        writer.take(steps.rows(first, 100))
    assert writer.close()
    assert size_of(run) <= 20_000 * 5 / 4 + 2 * 4096
    assert before > 0
    rows = LaneReader(run, "r0").steps()["step"]
    assert np.all(np.diff(rows) > 0)
    assert rows[-1] == 2999


def test_what_is_owed_to_a_dead_disk_is_bounded(
    run: Run, steps: Any, full_disk: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "PENDING_MAX", 5000)
    writer = LaneWriter(run, "r0")
    writer.take([steps.declaration()])
    with full_disk(4096):
        for first in range(0, 1000, 100):
            writer.take(steps.rows(first, 100))
    assert writer.lost == 700
    assert writer.close()
    assert len(LaneReader(run, "r0").steps()) == 300


def test_a_removed_run_folder_does_not_raise(run: Run, steps: Any) -> None:
    writer = LaneWriter(run, "r0", segment_rows=10)
    writer.take([steps.declaration(), *steps.rows(0, 5)])
    for path in run.path.iterdir():
        path.unlink()
    run.path.rmdir()
    writer.take([*steps.rows(5, 50), (EVENT, encode(event(1).to_dict()))])
    writer.write_findings([finding(1)])
    assert writer.errors > 0
    assert not writer.close()


def test_drain_needs_a_ring(run: Run) -> None:
    with pytest.raises(ValueError, match="take"):
        LaneWriter(run, "r0").drain()


def test_headers_hold_what_the_contract_says(run: Run, steps: Any) -> None:
    writer = LaneWriter(run, "r0")
    writer.take([steps.declaration(layers=["a"]), *steps.rows(0, 5)])
    writer.close()
    data = (run.path / "steps.r0.000000.bin").read_bytes()
    header = json.loads(data[:4096])
    assert header["dtype"] == steps.columns
    assert header["layers"] == ["a"]
    assert (header["offset"], data[4095:4096]) == (4096, b"\n")
    assert data[4096:] == steps.array(0, 5).tobytes()
