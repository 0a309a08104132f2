"""The ends that ``run.json`` does not tell; those that it tells are in test_summary.py."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest

from holdfast.records.recovery import RunStopped
from holdfast.records.trainer import TrainingEnded
from holdfast.report.ending import ending_of
from holdfast.run import ProcessMark, Ring, Run
from holdfast.run.life import PROCESS

OURS = ProcessMark.of()
DEAD = replace(OURS, started=1)
FAR = replace(OURS, host="node7")


@pytest.fixture
def left(make_run):
    """A run whose end nobody wrote, last touched so many seconds ago."""

    def make_one(mark: ProcessMark, ago: float = 0.0) -> Run:
        run = make_run(finished=False, meta={PROCESS: mark.to_dict()})
        for path in run.path.iterdir():
            os.utime(path, (time.time() - ago, time.time() - ago))
        return run

    return make_one


def leave_ring(run: Run) -> None:
    Ring.create(run.ring_path("r0"), 4096, pid=2**22 + 1).detach()


@pytest.mark.parametrize(
    ("mark", "ago", "word", "line"),
    [
        (OURS, 0, "running", f"still running, process {os.getpid()}"),
        (OURS, 7200, "running", "nothing written for 2 h 00 min"),
        (FAR, 60, "running", "still running on node7"),
        (FAR, 7200, "unfinished", "not finished: it is still running on node7, or"),
        (FAR, 90_000, "killed", "lost: nothing written on node7 for 25 h"),
        (DEAD, 0, "finished", "exit code is not known"),
    ],
)
def test_by_who_is_left(left, mark, ago, word, line):
    ending = ending_of(left(mark, ago), [])
    assert ending.word == word and line in ending.line.replace("\xa0", " ")
    assert ending.died == (word == "killed")


def test_a_ring_that_was_left_open(left):
    run = left(DEAD)
    leave_ring(run)
    assert ending_of(run, []).word == "killed" and "SIGKILL" in ending_of(run, []).line


def test_an_orphan_says_so(left):
    run = left(DEAD)
    ring = Ring.create(run.ring_path("r0"), 4096)
    assert "its supervisor was killed" in ending_of(run, []).line
    ring.detach()


@pytest.mark.parametrize("with_ring", [False, True])
def test_an_exception_is_reported_although_nobody_wrote_the_exit_code(left, make_event, with_ring):
    run = left(DEAD)
    if with_ring:
        leave_ring(run)
    raised = make_event("exception", 0, 9, type="ValueError", message="bad", file="a.py", line=3)
    ending = ending_of(run, [raised])
    assert (ending.word, ending.died) == ("failed", True)
    assert ending.line == "crashed with ValueError: bad at a.py:3"


def test_a_recipe_that_was_interrupted_ends_in_order(make_run, make_event):
    end = TrainingEnded(why="interrupted", interrupted=True)
    reported = [make_event(end.kind, 0, 9, **end.to_dict())]
    assert ending_of(make_run(), reported).word == "interrupted"


def test_what_ended_the_process_before_does_not_end_the_one_that_resumed(make_run, make_event):
    raised = make_event("exception", 0, 9, type="ValueError")
    record = RunStopped(code="OPT001", why="a budget is spent")
    stop = make_event(record.kind, 0, 9, **record.to_dict())
    assert ending_of(make_run(name="c", exit_code=1), [raised, stop]).word == "stopped"
    resumed = replace(make_event("resume", 0, 9), time=raised.time + 1)
    assert ending_of(make_run(), [raised, stop, resumed]).word == "finished"
    assert ending_of(make_run(name="b", exit_code=1), [resumed, raised]).line.endswith("code 1")


def test_a_status_that_is_not_ours(make_run):
    run = make_run()
    run.update_meta(status="odd")
    assert ending_of(run, []).line == "not finished: status 'odd'"


@pytest.mark.parametrize(
    ("name", "steps_after", "code", "word", "line"),
    [
        ("SIGINT", 1, 0, "interrupted", "interrupted from the keyboard, which the script handled"),
        ("SIGTERM", 3, 0, "interrupted", "ended by SIGTERM, which the script handled"),
        ("SIGINT", 1, 1, "interrupted", "interrupted from the keyboard, exit code 1"),
        ("SIGTERM", 5000, 0, "finished", "finished"),
        ("SIGHUP", 1, 0, "finished", "finished"),
    ],
)
def test_a_signal_that_the_script_handled(
    make_run, make_event, name, steps_after, code, word, line
):
    """A script that catches Ctrl-C and leaves with 0 did not finish."""
    run = make_run(exit_code=code)
    events = [
        make_event("signal", 0, 20, name=name),
        make_event("end", 0, 20 + steps_after, steps=20),
    ]
    ending = ending_of(run, events)
    assert (ending.word, ending.line) == (word, line)
