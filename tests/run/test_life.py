from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.run import ProcessMark, Ring, Run, life_of
from holdfast.run import process as process_module
from holdfast.run.life import PROCESS

DEAD = replace(ProcessMark.of(), started=1).to_dict()
HERE = ProcessMark.of().to_dict()
FAR = replace(ProcessMark.of(), host="elsewhere").to_dict()


@pytest.fixture
def make(tmp_path: Path):
    def make_one(process: Any = None, **meta: Any) -> Run:
        return Run.create(tmp_path / "run", {} if process is None else {PROCESS: process, **meta})

    return make_one


@pytest.fixture
def ring():
    """Makes the ring of a lane, as a training process would."""
    made: list[Ring] = []

    def make_one(run: Run, *, closed: bool = False, pid: int | None = None) -> None:
        one = Ring.create(run.ring_path(run.claim_lane(0, os.getpid())), 4096, pid=pid)
        if closed:
            one.close_writer()
        made.append(one)

    yield make_one
    for one in made:
        one.detach()


def restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine was started again: the same ids, other processes."""
    monkeypatch.setattr(process_module, "_boot", lambda: "f" * 16)


def test_a_run_that_says_how_it_ended(make) -> None:
    run = make(HERE)
    run.update_meta(status="finished")
    assert life_of(run).state == "ended"


def test_a_supervisor_that_is_there(make) -> None:
    life = life_of(make(HERE))
    assert (life.state, life.pid, life.orphaned) == ("running", os.getpid(), False)
    assert life.silence < 60


def test_a_training_that_goes_on_without_its_supervisor(make, ring) -> None:
    run = make(DEAD)
    ring(run)
    life = life_of(run)
    assert (life.state, life.pid, life.orphaned) == ("running", os.getpid(), True)


@pytest.mark.parametrize("closed", [False, True])
def test_nobody_is_left(make, ring, monkeypatch: pytest.MonkeyPatch, closed: bool) -> None:
    run = make(HERE)
    ring(run, closed=closed)
    restarted(monkeypatch)
    assert life_of(run).state == ("closed" if closed else "killed")


def test_one_of_two_was_killed(make, ring, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(HERE)
    ring(run, closed=True)
    ring(run)
    restarted(monkeypatch)
    assert life_of(run).state == "killed"


def test_killed_before_there_was_a_lane_or_a_ring(make) -> None:
    run = make(DEAD)
    assert life_of(run).state == "killed"
    run.claim_lane(0, 1)
    assert life_of(run).state == "killed"


def test_all_was_drained_and_the_end_not_written(make) -> None:
    run = make(DEAD)
    run.stream_path("events", "r0").touch()
    assert life_of(run).state == "closed"


def test_a_damaged_ring_was_left_open(make) -> None:
    run = make(DEAD)
    run.ring_path("r0").write_bytes(b"x" * 20_000)
    assert life_of(run).state == "killed"


def test_what_goes_on_elsewhere_is_not_known(make) -> None:
    run = make(FAR)
    os.utime(run.path / "run.json", (time.time() - 500, time.time() - 500))
    life = life_of(run)
    assert (life.state, life.host) == ("unknown", "elsewhere")
    assert 490 < life.silence < 600


def test_a_ring_of_another_machine_is_no_proof_of_death(
    make, ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(DEAD)
    ring(run)
    monkeypatch.setattr(process_module, "_host", lambda: "third")
    assert life_of(run).state == "unknown"


def test_a_run_of_an_older_version(make, ring) -> None:
    run = make()
    assert life_of(run).state == "unknown"
    ring(run, pid=2**22 + 1)
    path = run.ring_path("r0")
    data = bytearray(path.read_bytes())
    data[320:408] = bytes(88)
    path.write_bytes(data)
    assert life_of(run).state == "killed"
