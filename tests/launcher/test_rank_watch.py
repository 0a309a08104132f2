"""Ranks are compared while they train, now and then, and each thing is said once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from tests.conftest import record
from tests.rank_lanes import FACTS, event

from holdfast.config import Settings
from holdfast.detectors import ALL
from holdfast.launcher.drain import Drain
from holdfast.launcher.end_times import EndTimes
from holdfast.launcher.heartbeat import Heartbeat
from holdfast.launcher.rank_watch import RankWatch
from holdfast.run import LaneReader, Recorder, Run
from holdfast.types import Event, Finding, Severity


@pytest.fixture
def run(tmp_path, make_rows):
    run = Run.create(tmp_path / "run", {"script": "train.py"})
    for rank in (0, 1):
        rows = make_rows(60, seed=rank, batch=7.0)
        rows["loss"] = make_rows(60, seed=0)["loss"]
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


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd_open")
def test_an_end_is_known_before_the_thread_has_seen_it(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", lambda self: None)
    ends = EndTimes()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ends.watch(process.pid)
    assert ends.of(process.pid) is None
    process.communicate(b"\n")
    assert ends.of(process.pid) is not None


def test_a_process_that_is_gone_already_is_not_waited_for():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    ends = EndTimes()
    ends.watch(process.pid)
    assert ends.of(process.pid) is None


def hang(**evidence: object) -> Finding:
    return Finding(
        code="RNK007", name="collective_hang", severity=Severity.ERROR, step=9, message="step 9: x",
        advice="", evidence=evidence,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("codes", "evidence", "ended"),
    [
        (["RNK007"], {"deadlock": True, "gone": [1]}, True),
        (["RNK007", "RNK005"], {"deadlock": True, "gone": []}, True),
        (["RNK007"], {"deadlock": True, "gone": []}, False),  # the network may come back
        (["RNK007", "RNK005"], {"deadlock": False, "gone": []}, False),
        ([], {}, False),
    ],
)
def test_ranks_that_wait_for_ever_are_given_up(tmp_path, monkeypatch, codes, evidence, ended):
    """Both lanes are ours; what is found about them is made up."""
    run = Run.create(tmp_path / "run", {})
    for rank in (0, 1):
        Recorder(run, rank, os.getpid(), "owner", 1 << 16)
    drain = Drain(run, "owner", Settings(), ALL, lambda line: None, Heartbeat(0.0))
    found = [replace(hang(**evidence), code=code) for code in codes]
    monkeypatch.setattr(RankWatch, "due", True)
    monkeypatch.setattr(
        RankWatch, "look", lambda self, *, now=False: setattr(self, "findings", found) or found
    )
    drain.tick()
    assert (drain.abandoned is not None) == ended


def test_a_rank_that_is_gone_is_recorded_at_once_with_its_time(tmp_path):
    run = Run.create(tmp_path / "run", {})
    code = (
        "import sys, os, signal; from holdfast.run import Recorder, Run;"
        "Recorder(Run.open(sys.argv[1]), 1, os.getpid(), 'owner', 1 << 16);"
        "print('open', flush=True); sys.stdin.readline(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"open\n"
    drain = Drain(run, "owner", Settings(), ALL, lambda line: None, Heartbeat(0.0))
    drain.tick()
    assert [e.kind for e in LaneReader(run, "r1").events() if e.kind == "died"] == []
    before = time.time()
    process.communicate(b"\n")
    until = time.monotonic() + 60
    died: list[Event] = []
    while not died and time.monotonic() < until:
        drain.tick()
        died = [e for e in LaneReader(run, "r1").events() if e.kind == "died"]
    drain.close()
    assert [e.kind for e in LaneReader(run, "r1").events()].count("died") == 1
    assert not hasattr(os, "pidfd_open") or before <= died[0].data["at"] <= died[0].time
