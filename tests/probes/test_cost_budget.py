"""Above its budget the guard drops parts in a stated order, and then states its floor."""

from __future__ import annotations

from holdfast.probes.cost_budget import FLOOR, MEASUREMENTS, ORDER, WATCHERS, CostBudget

STEP = 1e-3
WINDOW = 64


def windows(budget: CostBudget, *ours: float) -> list[str]:
    """What each window of steps of a millisecond says; the first one is never judged."""
    said = [budget.spend(each, WINDOW * i * STEP + n * STEP) for i, each in enumerate(ours)
            for n in range(WINDOW)]  # fmt: skip
    assert not any(word for n, word in enumerate(said, 1) if n % WINDOW)
    return said[WINDOW - 1 :: WINDOW]


def test_parts_are_dropped_one_by_one_in_the_stated_order() -> None:
    budget = CostBudget(0.02)
    assert windows(budget, 1e-4, 1e-4) == ["", MEASUREMENTS]
    assert budget.lean and not budget.resting
    budget = CostBudget(0.02)
    assert windows(budget, *[1e-4] * 6) == ["", *ORDER, FLOOR, "", ""]
    assert budget.lean and budget.resting
    assert list(ORDER) == [MEASUREMENTS, WATCHERS]


def test_no_more_is_dropped_than_the_budget_needs() -> None:
    budget = CostBudget(0.02)
    assert windows(budget, 1e-4, 1e-4, 1e-5, 1e-5) == ["", MEASUREMENTS, "", ""]
    assert not budget.resting


def test_within_the_budget_nothing_is_said_and_the_start_does_not_count() -> None:
    assert windows(CostBudget(0.02), 5e-3, 1e-5, 1e-5) == ["", "", ""]


def test_the_pace_is_that_of_the_last_eight_steps() -> None:
    budget = CostBudget(0.02)
    assert budget.pace == float("inf")
    for step in range(24):
        budget.spend(0.0, 100.0 + step * (1.0 if step < 16 else 0.25))
    assert budget.pace < 0.3


def test_an_event_has_microseconds_and_percent() -> None:
    budget = CostBudget(0.02)
    windows(budget, 1e-4, 1e-4)
    facts = budget.facts(MEASUREMENTS)
    assert facts.part == MEASUREMENTS and facts.budget == 0.02
    why = facts.why
    assert "100 µs per step, 10 % of the time, above its budget of 2 %" in why
    assert "16 times less often" in why and "skipping goes on" in why
    assert "what skipping a bad step needs" in budget.facts(FLOOR).why
