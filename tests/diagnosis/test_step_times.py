"""What is usual: blocks, slower steps, stalls, and what another process does to them."""

from __future__ import annotations

import threading
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.diagnosis.throughput import loop_clock
from holdfast.diagnosis.throughput.profile_orders import ProfileOrders, _stalls
from holdfast.diagnosis.throughput.run_queue import RunQueue, longest
from holdfast.diagnosis.throughput.step_times import StepTimes


def fed(walls, busy=None, waited=0.0, queued=None) -> StepTimes:
    times = StepTimes()
    for step, wall in enumerate(walls):
        used, stood = wall if busy is None else busy[step], queued[step] if queued else 0.0
        times.add(step, wall, used, waited * wall, stood)
    return times


def test_the_first_steps_do_not_count():
    times = fed([5.0, 5.0, 5.0] + [0.002] * 16)
    assert times.reference == 0.002 and times.seconds < 0.1


def test_steps_that_grow_are_slower_and_busier():
    times = fed([0.002 * (1 + i / 20) for i in range(83)])
    assert times.slower(2.0, 0.0004) and times.busier


def test_another_process_makes_steps_longer_but_not_busier():
    times = fed([0.002] * 43 + [0.004] * 40, [0.002] * 83)
    assert times.slower(1.35, 0.0004) and not times.busier


def test_steps_that_wait_for_the_processor_are_not_slower():
    walls = [0.002] * 43 + [0.004] * 40
    assert not fed(walls, [0.002] * 83, queued=[w - 0.002 for w in walls]).slower(1.35, 0.0004)


def test_one_slow_step_moves_nothing():
    walls = [0.002] * 83
    walls[50] = 0.5
    assert not fed(walls).slower(1.35, 0.0004)


def test_stalls_that_come_back_are_counted():
    walls = [0.03 if i % 10 == 9 else 0.002 for i in range(103)]
    stalls = fed(walls).stalled(100)
    assert {b.step - a.step for a, b in pairwise(stalls)} == {10}
    assert all(0.02 < stall.excess < 0.03 for stall in stalls)


def test_only_the_long_stalls_tell():
    walls = [0.002] * 203
    walls[20::20] = [0.2] * len(walls[20::20])
    walls[25::7] = [0.014 if w < 0.1 else w for w in walls[25::7]]
    times = fed(walls)
    assert all(stall.excess > 0.1 for stall in times.stalled(128))
    assert times.is_stall(0.19) and not times.is_stall(0.014)


def test_a_long_wait_for_the_processor_is_no_stall_but_a_long_sleep_is():
    walls = [0.2 if i % 10 == 9 else 0.002 for i in range(103)]
    queued = [wall - 0.002 for wall in walls]
    assert not fed(walls, [0.002] * 103, queued=queued).stalled(100)
    assert fed(walls, [0.002] * 103).stalled(100)


def test_a_look_without_a_symptom_waits_until_it_is_cheap():
    times = fed([0.002] * 43)

    def due(cost: float) -> str:
        orders = ProfileOrders()
        orders.begins("reference")
        orders.pay("reference", cost)
        return orders.due(times, 43, fed=False, known=True)

    assert times.own == times.seconds and due(0.02 * times.own) == "", "two would be 4 %"
    assert due(0.01 * times.own) == "look"


def test_the_time_in_line_for_a_processor_is_read_or_nothing():
    queue = RunQueue()
    assert queue.waited() >= 0.0 and queue.waited() < 10.0
    queue.close()
    assert queue.waited() == 0.0


def test_a_preempted_step_is_no_stall():
    busy = [0.002] * 103
    walls = [0.008 if i % 10 == 9 else 0.002 for i in range(103)]
    assert not fed(walls, busy).stalled(100)


def test_the_share_of_waiting():
    assert abs(fed([0.002] * 43, waited=0.4).share_waited() - 0.4) < 1e-6


def test_time_in_line_for_a_processor_is_no_waiting_for_data():
    def waiting(queued: float) -> StepTimes:
        times = StepTimes()
        for step in range(43):
            long = step % 4 == 3
            times.add(step, 0.012 if long else 0.002, 0.002, 0.0101 * long, queued * long)
        return times

    assert waiting(0.01).share_waited() > 0.5 and waiting(0.01).waits() < 0.1
    assert waiting(0.0).waits() > 0.5, "now and then, for data"
    assert fed([0.004] * 43, waited=0.6, queued=[0.002] * 43).waits() > 0.5, "in every step"


def test_dear_looks_for_a_symptom_wait_and_cheap_ones_do_not():
    walls = [0.002 * (1 + i / 20) for i in range(103)]

    def looks(each: float) -> list[float]:
        """Seconds of the run at which a look was made."""
        orders, made, times = ProfileOrders(), list[float](), StepTimes()
        for step, wall in enumerate(walls):
            full = times.add(step, wall, wall, 0.0)
            if full and orders.due(times, step, fed=False, known=True) == "slow":
                made.append(times.own)
                orders.begins("slow")
                orders.pay("slow", each)
        return made

    cheap, dear = looks(0.002), looks(0.02)
    assert len(cheap) > len(dear) and dear[0] == cheap[0]
    assert dear[1] >= 0.2 > cheap[1], "two are 20 %: the second confirms the first"
    assert len(dear) < 3 or dear[2] >= 0.6, "three are 10 %"


def test_the_first_look_for_a_symptom_and_one_at_workers_wait_for_no_budget():
    orders, asked = ProfileOrders(), {"fed": True, "known": True}
    orders.begins("reference")
    orders.pay("reference", 1.0)
    assert orders.due(fed([0.01] * 43, waited=0.6), 43, **asked) == "waits"
    later = fed([0.01] * 75, waited=0.6)
    assert orders.due(later, 75, **asked) == ""
    assert orders.due(later, 75, **asked, workers=True) == "waits"


def test_what_paid_for_looks_is_not_forgotten_with_the_loop():
    times = StepTimes(fed([0.002] * 43).own)
    assert times.own > 0.0 and not times.seconds


@pytest.mark.parametrize(("wall", "asked"), [(0.0101, 0), (0.013, 1)])
def test_who_had_the_processor_is_asked_where_the_thread_had_not(monkeypatch, wall, asked):
    clock, asks = loop_clock.LoopClock(loop_clock.LoopLoader()), list[float]()
    monkeypatch.setattr(clock._queue, "waited", lambda: asks.append(1) or 0.002)
    now = {"perf_counter": 0.0, "thread_time": 0.0}
    for name in now:
        monkeypatch.setattr(loop_clock, name, lambda name=name: now[name])
    record = cast(Any, SimpleNamespace(step=1, row={"data_wait": 0.0, "guard": 0.0}))
    clock.ended(record, cast(Any, None))
    clock.runs(traced=False)
    asks.clear()
    now["perf_counter"], now["thread_time"] = wall, 0.01
    record.step = 2
    assert clock.ended(record, cast(Any, None)) and clock.busy == 0.01
    assert len(asks) == asked and clock.queued == 0.002 * asked


def test_what_the_thread_usually_waits_for_is_not_asked_about(monkeypatch):
    """A device's backward has a thread of its own: who waits for it has lost no processor."""
    clock, asks = loop_clock.LoopClock(loop_clock.LoopLoader()), list[int]()
    monkeypatch.setattr(clock._queue, "waited", lambda: asks.append(record.step) or 0.0)
    now = {"perf_counter": 0.0, "thread_time": 0.0}
    for name in now:
        monkeypatch.setattr(loop_clock, name, lambda name=name: now[name])
    record = cast(Any, SimpleNamespace(step=0, row={"data_wait": 0.0, "guard": 0.0}))
    waits = [0.002] * 43 + [0.006] + [0.002] * 4 + [0.0]
    for step, wait in enumerate(waits):
        record.step = step
        now["perf_counter"] += 0.003 + wait
        now["thread_time"] += 0.003
        clock.ended(record, cast(Any, None))
        clock.runs(traced=False)
    late = [step for step in asks if step > 24]
    assert late == [32, 40, 43, 48]
    # A wait for data is asked about every time: it may have been for a processor.
    record.row["data_wait"] = 0.002
    for step in range(49, 80):
        record.step = step
        now["perf_counter"] += 0.005
        now["thread_time"] += 0.003
        clock.ended(record, cast(Any, None))
        clock.runs(traced=False)
    assert asks[-31:] == list(range(49, 80))


def test_a_wait_for_data_is_no_stall():
    walls = [0.03 if i % 10 == 9 else 0.002 for i in range(103)]
    assert fed(walls).stalls
    assert not fed(walls, waited=0.7).stalls


def test_slower_steps_need_two_blocks():
    assert not fed([0.002] * 19 + [0.003] * 8).slower(1.35, 0.0004)
    assert fed([0.002] * 19 + [0.003] * 16).slower(1.35, 0.0004)


def test_two_long_stalls_come_back_and_three_short_ones():
    def seen(wall, last):
        times = fed([wall if i % 10 == 9 and i > 10 else 0.002 for i in range(last)])
        return _stalls(times, last)

    assert not seen(0.02, 25)
    assert seen(0.02, 35)
    assert not seen(0.007, 35)
    assert seen(0.007, 45)


def test_the_thread_that_stood_in_line_longest_counts():
    queue = RunQueue()
    before = queue.of_threads()
    assert str(threading.get_native_id()) in before
    assert 0.0 <= longest(before, queue.of_threads()) < 10.0
    assert longest({}, {}) == 0.0
