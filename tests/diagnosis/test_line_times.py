"""Seconds per line: the right line, nothing kept, nothing left behind."""

from __future__ import annotations

import os
import sys
import weakref

import pytest
import torch
from torch import nn

from holdfast.diagnosis.throughput.line_times import LineTimes
from holdfast.diagnosis.throughput.measured_lines import MeasuredLines
from holdfast.diagnosis.throughput.profiles import ProfiledLine, StepProfile, line_of, turn_of
from tests.conftest import Clock


def slow_line(clock: Clock, seconds: float) -> int:
    total = 0
    for _ in range(4):
        total += 1
    clock.sleep(seconds)
    return total


def profiled(work, steps: int = 3):
    times = LineTimes()
    assert times.begin(sys._getframe())
    try:
        for _ in range(steps):
            work()
            times.step(0.0)
    finally:
        times.stop(sys._getframe())
    assert sys.gettrace() is None
    return times.profile()


def test_the_line_that_takes_the_time_is_named(clock: Clock):
    worst = profiled(lambda: slow_line(clock, 0.01)).lines[0]
    assert worst.function == "slow_line"
    assert worst.spot[1] == slow_line.__code__.co_firstlineno + 4
    assert worst.seconds == pytest.approx(0.01, rel=0.01)


def test_lines_in_a_loop_are_counted(clock: Clock):
    lines = profiled(lambda: slow_line(clock, 0.0)).lines
    inner = (__file__, slow_line.__code__.co_firstlineno + 3)
    assert [line.hits for line in lines if line.spot == inner] == [4]


def test_a_model_is_reported_from_the_line_that_calls_it():
    model = nn.Linear(64, 64)

    def work() -> None:
        model(torch.ones(8, 64)).sum().backward()

    profile = profiled(work)
    assert {line.mark for line in profile.lines} >= {"", "model", "backward"}
    assert profile.inputs == 8 * 64
    assert profile.models == 1


def test_a_generator_that_is_suspended_keeps_its_place(clock: Clock):
    def batches():
        for i in range(100):
            clock.sleep(0.005)
            yield i

    source = batches()
    worst = profiled(lambda: next(source)).lines[0]
    assert worst.function == "batches" and worst.spot[1] == batches.__code__.co_firstlineno + 2


def test_nothing_is_kept_alive():
    def loop() -> weakref.ref:
        kept = nn.Linear(2, 2)
        times = LineTimes()
        times.begin(sys._getframe())
        for _ in range(3):
            kept(torch.ones(1, 2))
            times.step(0.0)
        times.stop(sys._getframe())
        gone = weakref.ref(kept)
        del kept
        assert gone() is None
        return gone

    loop()


def test_variables_survive_the_trace():
    def loop() -> int:
        total = 0
        times = LineTimes()
        times.begin(sys._getframe())
        for i in range(3):
            total += i
            times.step(0.0)
        times.stop(sys._getframe())
        later = total + 1
        return later

    assert loop() == 4


def test_where_somebody_else_traces_nothing_is_done():
    sys.settrace(lambda *about: None)
    try:
        assert not LineTimes().begin(sys._getframe())
    finally:
        sys.settrace(None)


def test_a_trace_that_becomes_too_long_ends_by_itself(monkeypatch):
    monkeypatch.setattr("holdfast.diagnosis.throughput.line_tree._EVENTS", 50)
    times = LineTimes()
    times.begin(sys._getframe())
    for _ in range(100):
        pass
    assert not times.running and sys.gettrace() is None
    times.step(0.0)
    times.stop(sys._getframe())
    assert times.profile().lines


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_not_traced():
    times = LineTimes()
    times.begin(sys._getframe())
    child = os.fork()
    if child == 0:
        os._exit(0 if sys.gettrace() is None else 1)
    times.stop(sys._getframe())
    assert os.waitpid(child, 0)[1] == 0


def test_the_loop_of_the_steps_is_found():
    def step():
        return turn_of(sys._getframe()), line_of(sys._getframe())

    for _ in range(1):
        turn, line = step()
        assert turn is not None
        assert turn.first < turn.path[turn.depth][1] <= turn.last
        assert line[1] == step.__code__.co_firstlineno + 1


def pairs(clock: Clock, count: int) -> int:
    found = 0
    for i in range(count):
        for j in range(count):
            clock.sleep(1e-5)  # takes most
            found += i < j
    return found


def test_very_many_lines_are_followed_in_bursts(clock: Clock):
    def cheap() -> None:
        pass

    def work() -> None:
        cheap()
        pairs(clock, 150)

    times = LineTimes()
    assert times.begin(sys._getframe())
    for _ in range(3):
        work()
        assert times.running, "it has given up"
        times.step(0.0)
    times.stop(sys._getframe())
    worst = times.profile().lines[0]
    assert worst.function == "pairs" and worst.spot[1] == pairs.__code__.co_firstlineno + 4
    # What was seen of it (4000 lines and some bursts) is made up for what was not: 22,500.
    assert worst.hits > 8_000


def test_frames_are_left_as_they_were(clock: Clock):
    profiled(lambda: pairs(clock, 150))
    assert sys._getframe().f_trace_lines and sys._getframe().f_trace is None


def test_dynamo_does_not_compile_the_trace():
    dynamo = pytest.importorskip("torch._dynamo")
    dynamo.reset()
    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), backend="eager")
    model(torch.ones(2, 4))
    before = dynamo.utils.counters["frames"]["total"]
    profiled(lambda: model(torch.ones(2, 4)), steps=4)
    assert dynamo.utils.counters["frames"]["total"] == before
    dynamo.reset()


def test_what_the_source_says_of_measured_lines(tmp_path):
    file = str(tmp_path / "train.py")
    source = (
        "history = []\n"
        "for step in range(9):\n"
        "    if step % 4 == 0:\n"
        "        hard = mined(x)\n"
        "        kept = checked(x)\n"
        "    loss = model(hard).mean()\n"
        "    loss.backward()\n"
        "    history.append(step)\n"
        "    worst = sorted(history)[0]\n"
        "    other = sorted(kept)\n"
    )
    (tmp_path / "train.py").write_text(source)
    lines = [ProfiledLine(((file, at),), seconds=1.0) for at in (4, 5, 9, 10)]
    places, profile = MeasuredLines(), StepProfile(4.0, lines=lines)
    assert places.feeding(profile) == (places.number((file, 4)),)
    assert places.history(profile) == ((places.number((file, 9)), "history"),)
