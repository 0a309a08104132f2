"""Ranks are compared while they train, now and then, and each thing is said once."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from tests.conftest import record
from tests.rank_lanes import FACTS, event

from holdfast.detectors import ALL
from holdfast.launcher.end_times import EndTimes
from holdfast.launcher.rank_watch import RankWatch
from holdfast.run import Run


@pytest.fixture
def run(tmp_path, make_rows):
    run = Run.create(tmp_path / "run", {"script": "train.py"})
    for rank in (0, 1):
        rows = make_rows(60, seed=rank, batch=7.0)
        record(run, rows, lane=f"r{rank}", events=[event(rank, "parallel", **FACTS)], end=False)
    return run


def test_a_finding_is_said_once_and_not_before_its_time(run):
    now = [0.0]
    watch = RankWatch(run, ALL, lambda: now[0])
    assert watch.look() == []
    now[0] = 11.0
    assert [finding.code for finding in watch.look()] == ["RNK004"]
    now[0] = 100.0
    assert watch.look() == []


def test_it_can_be_asked_at_once(run):
    assert [finding.code for finding in RankWatch(run, ALL).look(now=True)] == ["RNK004"]


def test_a_folder_that_is_gone_is_no_error(run):
    for path in run.path.iterdir():
        path.unlink()
    assert RankWatch(run, ALL).look(now=True) == []


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd_open")
def test_ends_are_known_in_their_order():
    ends = EndTimes()
    sleeps = ("0.4", "0.2", "60")
    code = "import time, sys; time.sleep(float(sys.argv[1]))"
    started = [subprocess.Popen([sys.executable, "-c", code, each]) for each in sleeps]
    try:
        for process in started:
            ends.watch(process.pid)
        until = time.monotonic() + 60
        while ends.of(started[0].pid) is None and time.monotonic() < until:
            time.sleep(0.05)
        first, second = ends.of(started[1].pid), ends.of(started[0].pid)
        assert first is not None and second is not None and ends.of(started[2].pid) is None
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert abs(second - time.time()) < 60


def test_a_process_that_is_gone_already_is_not_waited_for():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    ends = EndTimes()
    ends.watch(process.pid)
    assert ends.of(process.pid) is None
