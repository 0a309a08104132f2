from __future__ import annotations

from typing import Any

import pytest

from holdfast.detectors.hang import Hang
from holdfast.detectors.judge import Judge
from holdfast.records.crash import NoProgress
from holdfast.report import plain
from holdfast.report.cause import cause_of
from holdfast.report.facts import facts_of
from holdfast.report.joined_findings import join_ranks
from holdfast.report.text import finding_lines
from holdfast.types import Event, Severity

SEEN = {"seconds": 700.0, "limit": 600.0, "longest": 3.0, "cpu": 0.02, "bytes_per_second": 10}
SEEN |= {"moves": False, "moves_inside": False, "file": "train.py", "line": 30, "frames": []}


def event(step: int, kind: str = "no_progress", time: float = 0.0, **data: Any) -> Event:
    shown = NoProgress.from_dict({**SEEN, **data}).to_dict() if kind == NoProgress.kind else data
    return Event(time=time, rank=0, step=step, kind=kind, data=shown)


def judged(make_rows: Any, *events: Event) -> list[Any]:
    judge = Judge([Hang])
    judge.feed(make_rows(20), events)
    judge.close()
    return judge.findings


def test_it_names_the_worker_its_line_and_its_sample(make_rows):
    worker = {"file": "data.py", "line": 9, "sample": 4}
    (finding,) = judged(make_rows, event(20, waits_for=1, stuck_worker=worker, samples=[3, 4]))
    assert "for 11.7 min" in finding.message and "train.py:30" in finding.message
    assert "loader worker 1, which stands at data.py:9, sample 4" in finding.message
    assert (finding.file, finding.line, finding.severity) == ("data.py", 9, Severity.ERROR)
    assert finding.evidence["samples"] == [4]


def test_it_shows_the_line_and_does_not_claim_to_be_certain(make_rows):
    worker = {"file": "data.py", "line": 9, "function": "__getitem__"}
    worker["excerpt"] = [[8, "with lock:"], [9, "    read()"]]
    (finding,) = judged(make_rows, event(20, waits_for=1, stuck_worker=worker))
    cause = cause_of(finding)
    assert cause is not None and cause.excerpt == ((8, "with lock:"), (9, "    read()"))
    assert 9 in cause.guilty and cause.recorded.function == "__getitem__"
    (group,) = join_ranks([("r0", finding)])
    sure = dict(facts_of(group, cause, several_ranks=False).rows)["how sure"]
    assert sure.startswith("likely: three looks found no work") and "guess" in sure
    assert "error, likely" in plain(finding_lines(group))
    (busy,) = judged(make_rows, event(20, cpu=1.0, seconds=1900.0))
    assert busy.confidence < finding.confidence < 0.95
    assert busy.evidence["sure"].startswith("doubtful: it computes")


@pytest.mark.parametrize(
    ("data", "hangs"),
    [
        ({}, True),
        ({"cpu": 1.0}, False),  # computes
        ({"cpu": 1.0, "seconds": 1900.0}, True),
        ({"cpu": 1.0, "seconds": 1900.0, "moves_inside": True}, False),
        ({"cpu": 1.0, "seconds": 6100.0, "moves_inside": True}, True),
        ({"moves": True}, False),
        ({"runnable": True}, False),  # waits for its turn on a busy machine
        ({"bytes_per_second": 5e6}, False),  # a large checkpoint, a slow disk
        ({"moves_inside": True}, True),  # polls a queue
        ({"frames": [["/lib/python3.11/pdb.py", 5, "interaction"]]}, False),
    ],
)
def test_what_works_or_waits_for_a_person_does_not_hang(make_rows, data, hangs):
    assert bool(judged(make_rows, event(20, **data))) is hangs


def test_one_that_goes_on_is_a_warning_live_and_offline(make_rows):
    rows, silent = make_rows(30), event(20)
    again = event(20, "progress_again", seconds=800.0)
    live = Judge([Hang])
    live.feed(rows[:20])
    live.feed(None, [silent])
    (first,) = live.judge_waiting()
    assert first.severity is Severity.ERROR and first.evidence["count"] == 1
    live.feed(None, [event(20, seconds=1900.0)])
    live.judge_waiting()
    live.feed(None, [again])
    live.feed(rows[20:])
    offline = Judge([Hang])
    offline.feed(rows, [silent, event(20, seconds=1900.0), again])
    assert live.findings == offline.findings
    (last,) = live.findings
    assert last.severity is Severity.WARNING and last.evidence["count"] == 1
    assert last.evidence["went_on"] == 800.0


def test_a_pause_that_ended_before_does_not_end_the_next_one(make_rows):
    before = event(20, "progress_again", time=5.0, seconds=30.0)
    (finding,) = judged(make_rows, before, event(20, time=9.0))
    assert finding.severity is Severity.ERROR and finding.evidence["went_on"] == 0.0


@pytest.mark.parametrize(
    ("data", "worker", "words", "never"),
    [
        ({"started": "fork"}, {"inside": "get (/x/threading.py:5)"}, "'spawn'", "see what it"),
        ({"started": "spawn"}, {"inside": "get (/x/threading.py:5)"}, "see what it", "'spawn'"),
        ({"started": "fork"}, {"inside": "read (/x/socket.py:5)"}, "see what it", "'spawn'"),
        ({"started": "fork", "timeout": 60.0}, {"inside": ""}, "see what it", "timeout="),
    ],
)
def test_the_cure_of_a_worker_that_stands_still_has_its_preconditions(
    make_rows, data, worker, words, never
):
    stuck = {"file": "data.py", "line": 9, **worker}
    (finding,) = judged(make_rows, event(20, waits_for=1, stuck_worker=stuck, **data))
    assert words in finding.advice and never not in finding.advice


def test_ranks_that_do_not_find_each_other_have_no_collective_yet(make_rows):
    frames = [["/x/torch/distributed/rendezvous.py", 189, "_create_c10d_store"]]
    (finding,) = judged(make_rows, event(20, frames=frames))
    assert "MASTER_ADDR" in finding.advice and "did not come" not in finding.advice
