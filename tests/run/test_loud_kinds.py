"""Of a million events few are read: rare kinds whole, the first and last of loud ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.report import check_lines, plain, replay, report_lines, summarize
from holdfast.run import LaneReader, LaneWriter, Run, loud_kinds
from holdfast.types import Event

MANY = 5_000


@pytest.fixture
def loud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(loud_kinds, "MOST", 1_000)
    run = Run.create(tmp_path / "run", {"script": "train.py"})
    writer = LaneWriter(run, "r0")
    steps = [("level", step) for step in range(MANY)] + [("epoch", step) for step in range(MANY)]
    steps[MANY:MANY] = [("stop", 7), ("rollback", 8)]
    writer.write_events(
        [Event(time=1.0, rank=0, step=step, kind=kind, data={}) for kind, step in steps]
    )
    writer.close()
    return run


def test_rare_kinds_are_read_whole_and_of_loud_ones_both_ends(loud):
    data = LaneReader(loud, "r0").read()
    by_kind = {kind: [e.step for e in data.events if e.kind == kind] for kind in ("level", "epoch")}
    half = [*range(249), *range(MANY - 250, MANY)]
    assert by_kind == {"level": half, "epoch": half}
    assert {"stop", "rollback"} <= {event.kind for event in data.events}
    assert (len(data.events), data.unread) == (1_000, 2 * MANY + 2 - 1_000)
    assert len(LaneReader(loud, "r0").events()) == 2 * MANY + 2


def test_what_is_passed_over_is_reported_and_quickly_judged(loud):
    reported = plain(report_lines(summarize(loud), 300))
    assert "9,002 events passed over: of kinds with very many only the first and" in reported
    assert "No findings" in plain(check_lines(replay(loud)))


def test_lines_of_others_count_as_one_kind(loud):
    path = loud.stream_path("events", "r0")
    path.write_bytes(
        b"".join(b'{"kind":"k%d","time":1.0,"rank":0,"step":1}\n' % i for i in range(MANY))
    )
    data = LaneReader(loud, "r0").read()
    assert (len(data.events), data.unread) == (1_000, MANY - 1_000)
