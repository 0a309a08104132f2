from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from holdfast.run import ProcessMark
from holdfast.run import process as module
from holdfast.run.process import PACKED_SIZE


@pytest.fixture
def mark() -> ProcessMark:
    return ProcessMark.of()


def test_this_process_is_alive(mark: ProcessMark) -> None:
    assert mark.pid == os.getpid() and mark.is_alive() is True


def test_it_comes_back_from_run_json_and_from_a_ring(mark: ProcessMark) -> None:
    assert ProcessMark.from_dict(mark.to_dict()) == mark
    assert ProcessMark.unpack(mark.pid, mark.pack()) == mark
    bare = replace(mark, boot="", namespace=0)
    assert ProcessMark.unpack(mark.pid, bare.pack()) == bare


@pytest.mark.parametrize("data", [None, "x", [], {}, {"pid": 1}, {"pid": "1", "started": 2}])
def test_what_is_no_mark(data: object) -> None:
    assert ProcessMark.from_dict(data) is None


def test_a_ring_of_an_older_version_has_none() -> None:
    assert ProcessMark.unpack(1, bytes(PACKED_SIZE)) is None


@pytest.mark.parametrize(
    ("change", "alive"),
    [
        ({"started": 1}, False),  # the id came round again
        ({"boot": "0" * 16}, False),  # the machine was started again
        ({"namespace": 7}, None),  # a container, whose ids are others
        ({"host": "elsewhere"}, None),
        ({"host": "elsewhere", "boot": "0" * 16}, None),
        ({"pid": 2**22 + 1}, False),
    ],
)
def test_it_is_not_taken_for_another(mark: ProcessMark, change: dict, alive: bool | None) -> None:
    assert replace(mark, **change).is_alive() is alive


def test_a_process_that_ended_is_not_alive_even_before_its_parent_has_noticed() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    mark = ProcessMark.of(child.pid)
    assert mark.is_alive()
    child.kill()
    until = time.monotonic() + 20
    while mark.is_alive():
        assert time.monotonic() < until
        time.sleep(0.01)
    child.communicate()
    assert mark.is_alive() is False


def test_where_there_is_no_proc_wall_clock_times_are_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setattr(module, "_PROC", tmp_path)
    for cached in (module._boot, module._namespace):
        monkeypatch.setattr(module, cached.__name__, cached.__wrapped__)
    mark = ProcessMark.of()
    assert (mark.boot, mark.namespace) == ("", 0) and mark.is_alive()
    assert replace(mark, started=mark.started + 1000).is_alive(), "clocks are set now and then"
    assert not replace(mark, started=mark.started - 60_000).is_alive()
    assert ProcessMark.unpack(mark.pid, mark.pack()) == mark
