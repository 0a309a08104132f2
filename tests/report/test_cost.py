"""What a run is said to have cost: time in holdfast over the wall time of the same steps."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.records.times import TimeSaved
from holdfast.report.cost import Cost, cost_note, cost_of, cost_words, joined
from holdfast.report.words import NBSP

NAN = float("nan")


def reported(cost: Cost | None) -> str:
    return cost_words(cost).replace(NBSP, " ")


def test_time_per_step_and_share(make_rows):
    cost = cost_of(make_rows(2001), 2001)
    assert cost is not None and cost.steps == 1872
    assert reported(cost) == "Guard cost 50 µs per step.", (
        "a share of seconds says how short steps are"
    )
    long = cost_of(make_rows(9001), 9001)
    assert reported(long) == "Guard cost 50 µs per step (0.5 %)."
    assert cost.share == pytest.approx(0.005, rel=1e-3)


def test_the_start_is_told_apart(make_rows):
    rows = make_rows(2001, guard={0: 0.5, 50: 0.25})
    cost = cost_of(rows, 2001)
    assert cost is not None and cost.per_step == pytest.approx(5e-5)
    assert reported(cost) == "Guard cost 50 µs per step and 756 ms at the start."


def test_a_kernel_that_was_compiled_in_the_first_sample_is_no_cost_of_each_step(make_rows):
    """A small model on an H200 was told 414 %: the compilation stood for every 64th step."""
    rows = make_rows(1001)
    rows["guard_device"][::64], rows["guard_hidden"][::64] = 0, 0
    rows["guard_device"][0] = 2.7
    cost = cost_of(rows, 1001)
    assert cost is not None
    assert reported(cost) == "Guard cost at most 50 µs per step."
    assert "the device computes meanwhile" in cost_note(cost)


def test_what_kernels_take_longer_than_the_host_is_part_of_the_cost(make_rows):
    rows = make_rows(1001)
    rows["guard_device"][::64], rows["guard_hidden"][::64] = 1.95e-3, 0
    assert reported(cost_of(rows, 1001)) == "Guard cost at most 2 ms per step."


def test_host_time_costs_nothing_where_the_device_is_behind(make_rows):
    """A step of 71 ms on an H200 was told 20 %: launches had waited for room in the queue."""
    rows = make_rows(1001, guard=2e-3)
    rows["guard_device"][::64], rows["guard_hidden"][::64] = 4e-5, 1
    rows["guard_hidden"][0] = 0  # the first one compiles
    cost = cost_of(rows, 1001)
    assert cost is not None and cost.hidden == 1
    assert reported(cost).startswith("Guard cost at most 40 µs per step and")
    assert "In 100 % of the steps that were looked at" in cost_note(cost).replace(NBSP, " ")
    rows["guard_hidden"][::128] = 0  # in every second one
    half = cost_of(rows, 1001)
    assert half is not None and half.per_step == pytest.approx(1e-3, rel=0.2)
    assert (cost + half).hidden == pytest.approx((cost.hidden + half.hidden) / 2)


def test_what_is_spared_of_torch_is_no_cost(make_rows, make_event):
    def saved(at, seconds):
        reported = TimeSaved(seconds=seconds, own=2 * seconds, samples=8)
        return make_event(reported.kind, 0, at, **reported.to_dict())

    torch_time_saved = [saved(300, 1e-6), saved(900, 3e-5)]
    cost = cost_of(make_rows(1001), 1001, torch_time_saved)
    assert cost is not None
    assert reported(cost) == "Guard cost at most 20 µs per step."
    note = cost_note(cost).replace(NBSP, " ")
    assert "Per step holdfast takes 50 µs and saves torch 30 µs" in note
    assert (cost + cost).torch_time_saved == 2 * cost.torch_time_saved
    more = cost_of(make_rows(1001), 1001, [saved(9, 1.0)])
    assert more is not None and more.ours == 0 and reported(more).startswith("Guard cost at most 0")


def test_bad_steps_are_told_apart(make_rows):
    """Looking for the line of a NaN takes as long as it takes, and is no price of a step."""
    bad = {100: 1, 700: 1}
    rows = make_rows(1001, loss_bad=bad, skipped=bad, guard=dict.fromkeys(bad, 0.4))
    rows["time"][700:] += 1.0
    cost = cost_of(rows, 1001)
    assert reported(cost) == "Guard cost 50 µs per step and 800 ms to look into 2 bad steps."
    assert cost is not None and cost.share == pytest.approx(0.85 / 11, rel=0.01)


def test_a_short_run_tells_it_roughly(make_rows):
    bad = {5: 1}
    short = make_rows(41, guard=0.002)
    assert reported(cost_of(short, 41)) == (
        "Guard cost 80 ms of 400 ms; too short a run to tell what a step costs."
    )
    start = make_rows(201, guard=0.002)
    start["time"] = np.arange(201) * 0.1  # nearly all of it is start
    assert reported(cost_of(start, 201)).endswith("too short a run to tell what a step costs.")
    start["time"] = np.arange(201)  # but it took minutes
    assert reported(cost_of(start, 201)) == "Guard cost 2 ms per step (0.2 %)."
    short = make_rows(41, guard={5: 0.05}, loss_bad=bad)
    assert "50 ms of it to look into 1 bad step; too short" in reported(cost_of(short, 41))


def test_what_was_dropped_is_reported_in_its_order_with_the_floor(make_rows, make_event):
    """244 of 246 short scripts were above the budget, and none said so."""
    rows = make_rows(2001, guard=5e-4)
    floor = make_event("backed_off", 0, 9, part="floor")
    short = cost_of(make_rows(2001, guard=5e-4), 2001, [floor])
    assert "budget" not in reported(short)
    rows["time"] = 1.7e9 + rows["step"] * 0.05
    rows["guard"] = 2.5e-3
    events = [
        make_event("backed_off", 0, 127 + 64 * i, part=part, budget=0.02)
        for i, part in enumerate(("measurements", "look-outs", "floor"))
    ]
    cost = cost_of(rows, 2001, events)
    assert reported(cost) == "Guard cost 2.5 ms per step (5.0 %; budget 2.0 %)."
    note = cost_note(cost).replace(NBSP, " ")
    assert note.endswith(
        "Above its budget of 2.0 % weights, layers, updates and memory were measured less often "
        "and leaks and lost time were looked for in some of the steps only; the rest is what "
        "skipping a bad step needs."
    )
    held = cost_of(rows, 2001, events[:1])
    assert "budget" not in reported(held) and "rest" not in cost_note(held)
    both = joined([cost, held])
    assert both is not None and both.dropped == ("measurements", "look-outs", "floor")


def test_thinned_rows_stand_for_those_that_are_gone(make_rows):
    """Rows around incidents are all kept, and cost more: they must not stand for the others."""
    whole = make_rows(4001)
    whole["guard"][2000:2016] = 0.01
    kept = np.r_[0:2000:4, 2000:2016, 2016:4001:4]
    all_rows, thin = cost_of(whole, 4001), cost_of(whole[kept], 4001)
    assert all_rows is not None and thin is not None
    assert thin.steps == pytest.approx(all_rows.steps, rel=0.01)
    assert thin.per_step == pytest.approx(all_rows.per_step, rel=0.1)


def test_where_nothing_was_measured(make_rows):
    assert cost_of(make_rows(1), 1) is None
    assert cost_of(make_rows(9, guard=NAN), 9) is None
    assert cost_of(make_rows(9)[["step", "time", "loss"]], 9) is None
    assert cost_words(None) == "Guard cost unknown: too few steps were recorded."
    assert joined([None, None]) is None


def test_ranks_and_restarts_add_up():
    one = Cost(steps=100, seconds=10.0, ours=0.1)
    both = joined([one, None, Cost(steps=300, seconds=20.0, ours=0.5, device=True)])
    assert both == Cost(steps=400, seconds=30.0, ours=0.6, device=True)
