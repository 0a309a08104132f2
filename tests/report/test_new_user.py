"""What a new user read and did not understand, or found to be untrue."""

from __future__ import annotations

from holdfast.cli import main
from holdfast.detectors._remedies.prescription import amount
from holdfast.probes.cost_budget import MEASUREMENTS, CostBudget
from holdfast.report import plain, report_lines, summarize


def test_a_code_in_the_list_of_runs_stands_with_its_name(incident, capsys):
    run = incident()
    assert main(["runs", str(run.path.parent)]) == 0
    assert "NUM001 nonfinite loss" in capsys.readouterr().out


def test_one_of_many_is_singular():
    assert amount(1, 20, "the divisor is", "divisors are") == "1 of 20 divisors is"
    assert amount(2, 20, "the divisor is", "divisors are") == "2 of 20 divisors are"


def test_the_guard_tells_times_and_shares_as_the_report_does():
    budget = CostBudget(0.02)
    budget.per_step, budget.measured = 0.002034, 0.269
    why = budget.facts(MEASUREMENTS).why
    assert "took 2.03 ms per step, 27 % of the time, above its budget of 2 %" in why


def test_the_time_of_a_step_says_what_it_leaves_out(incident):
    assert " on average without the guard" in plain(report_lines(summarize(incident())))
