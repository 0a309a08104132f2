"""One report for all ranks: a row for each, the odd one first; live and recorded agree."""

from __future__ import annotations

import json

import pytest
from tests.conftest import record
from tests.rank_lanes import FACTS, event

from holdfast.report import plain, read_record, replay, report_html, report_json, report_md
from holdfast.report.ranks import rank_summaries
from holdfast.report.summary import summarize
from holdfast.report.text import end_lines, report_lines
from holdfast.run import Run

LOST = {"type": "RuntimeError", "message": "Connection closed by peer [::1]:3", "file": "a.py",
        "line": 9, "world": 3}  # fmt: skip
OWN = {"type": "KeyError", "message": "'cat'", "file": "a.py", "line": 4}


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "run", {"script": "train.py", "status": "finished"})


def lanes(run, make_rows, events=((), (), ()), **columns):
    for rank, more in enumerate(events):
        rows = make_rows(60, seed=rank, batch=float(100 + rank))
        for name, values in columns.items():
            rows[name] = values[rank]
        reported = [event(rank, "parallel", **FACTS | {"group": len(events)}), *more]
        record(run, rows, lane=f"r{rank}", events=reported)


def test_each_rank_has_a_row_and_the_odd_one_is_first(run, make_rows):
    lanes(run, make_rows, lr=(0.1, 0.1, 0.2))
    summary = summarize(run)
    assert [finding.code for finding in summary.findings] == ["RNK006"]
    assert summary.ranks[0].rank == 2
    assert [rank.odd for rank in summary.ranks] == [True, False, False]
    reported = plain(report_lines(summary))
    assert "the learning rate is 0.2 on rank 2" in reported
    head, first = reported.partition("\nRanks\n")[2].splitlines()[:2]
    assert head.split()[:3] == ["rank", "steps", "loss"] and first.split()[:2] == ["2", "60"]
    assert all(len(row) <= 88 for row in reported.splitlines())
    record_ = read_record(run)
    assert "<h2>Ranks</h2>" in report_html(record_).replace(' id="ranks"', "")
    assert "\n## Ranks\n\n| rank | steps |" in report_md(record_)
    data = json.loads(report_json(summary))
    assert data["ranks"][0]["rank"] == 2


def test_the_slowest_is_first_where_none_is_odd(run, make_rows):
    lanes(run, make_rows, data_wait=(0.001, 0.003, 0.002))
    assert [rank.rank for rank in summarize(run).ranks] == [1, 2, 0]


def test_one_rank_has_no_table(run, make_rows):
    record(run, make_rows(60))
    summary = summarize(run)
    assert summary.ranks == () == rank_summaries(summary.lanes, ())
    assert "Ranks" not in plain(report_lines(summary))


def test_what_is_said_live_later_and_again_is_the_same(run, make_rows):
    loss = make_rows(60, seed=0)["loss"]
    lanes(run, make_rows, lr=(0.1, 0.1, 0.2), batch=(7.0, 7.0, 7.0), loss=(loss, loss, 2 * loss))
    said = [(f.code, f.rank, f.message) for f in summarize(run).findings]
    assert {code for code, _, _ in said} == {"RNK004", "RNK006"}
    assert [(f.code, f.rank, f.message) for f in replay(run).findings] == said


def test_findings_about_ranks_can_be_switched_off(tmp_path, make_rows):
    settings = {"settings": {"detectors": {"select": ["ALL"], "ignore": ["RNK006"]}}}
    run = Run.create(tmp_path / "quiet", {"status": "finished", **settings})
    lanes(run, make_rows, lr=(0.1, 0.1, 0.2))
    assert summarize(run).findings == ()


def test_the_first_error_is_the_one_and_lost_connections_follow_from_it(run, make_rows):
    late = event(0, "exception", 60, time=1.7e9 + 2, **LOST)
    lanes(run, make_rows, events=((late,), (event(1, "exception", 60, **OWN),)))
    run.update_meta(exit_code=1)
    summary = summarize(run)
    (group,) = summary.finding_groups
    assert (group.finding.code, group.finding.rank, group.finding.line) == ("RUN001", 1, 4)
    assert group.consequences == (("RUN001", 0),)
    assert summary.ending.line == "crashed with KeyError: 'cat' at a.py:4"
    assert {rank.rank: rank.end for rank in summary.ranks} == {
        0: "RuntimeError: another rank is gone", 1: "KeyError",
    }  # fmt: skip
    assert "rank 1; so also RUN001 on rank 0" in " ".join(plain(end_lines(summary)).split())


def test_two_errors_of_their_own_are_two(run, make_rows):
    other = event(0, "exception", 60, **OWN | {"line": 8})
    lanes(run, make_rows, events=((other,), (event(1, "exception", 60, **OWN),)))
    assert len(summarize(run).finding_groups) == 2
