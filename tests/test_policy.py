from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import config
from holdfast.policy import DEFAULTS, Policy, Rule


def policy(*overrides: str) -> Policy:
    return Policy.of(config.load(None, list(overrides)))


def test_the_defaults_are_those_of_the_guide():
    assert policy().rules == DEFAULTS
    assert {rule.on: rule.do for rule in DEFAULTS} == {
        "NUM001": ("skip",), "NUM002": ("skip",), "NUM003": ("rollback",),
        "NUM005": ("skip", "quarantine"), "OPT001": ("rollback",), "OPT002": ("skip", "clip"),
        "OPT003": ("rollback", "lower_lr"),
    }  # fmt: skip


def test_the_longest_beginning_wins():
    rules = Policy([Rule(on="OPT", do=("stop",)), Rule(on="OPT00", do=("clip",)), Rule(on="O")])
    assert rules.rule("OPT001").do == ("clip",)
    assert rules.rule("OPT123").do == ("stop",)
    assert not rules.rule("OTHER1").acts and not rules.rule("MEM001").acts


def test_what_is_said_about_a_beginning_holds_for_all_unless_said_nearer():
    chosen = policy("policy.ALL=observe", "policy.NUM=stop", "policy.NUM001=skip")
    assert [rule.do[0] for rule in chosen.rules] == ["skip", *["stop"] * 3, *["observe"] * 3]


def test_what_is_not_said_stays():
    rule = policy("policy.OPT002.budget=50").rule("OPT002")
    assert (rule.do, rule.budget, rule.reset_after) == (("skip", "clip"), 50, 1)


def test_going_back_for_a_code_that_was_skipped_has_the_budget_of_going_back():
    assert policy("policy.NUM001=rollback").rule("NUM001").budget == 3
    assert policy("policy.NUM001=rollback", "policy.NUM001.budget=9").rule("NUM001").budget == 9


def test_a_thousand_in_a_row_are_left_out_and_the_next_stops_the_run():
    rules = policy()
    for step in range(1000):
        decision = rules.allow("NUM001", step)
        assert (decision.do, decision.stop, decision.left) == (("skip",), False, 999 - step)
    last = rules.allow("NUM001", 1000)
    assert last.stop and last.do == ("stop",)
    assert last.why == "the budget of NUM001 is spent: skip 1000 times in a row"
    assert rules.allow("NUM001", 5000).stop, "a run that was told to stop is not saved again"


def test_one_good_step_starts_the_count_anew():
    rules = policy("policy.NUM001.budget=2")
    for step in range(0, 3000, 2):
        assert not rules.allow("NUM001", step).stop


def test_a_step_that_was_only_looked_at_neither_counts_nor_starts_the_count_anew():
    rules = policy("policy.NUM001.budget=10")
    stopped: list[int] = []
    for step in range(20):
        if step in (4, 5):
            rules.passes_over(step)
        elif rules.allow("NUM001", step).stop:
            stopped.append(step)
    assert stopped[0] == 12


def test_two_faults_that_take_turns_do_not_calm_each_other():
    rules = policy("policy.NUM001.budget=10")
    stopped = [rules.allow(f"NUM00{1 + step % 2}", step).stop for step in range(40)]
    assert stopped.index(True) == 20


def test_a_fault_that_is_only_observed_is_no_calm_either():
    rules = policy("policy.NUM001.budget=5", "policy.OPT001=observe")
    stopped = [rules.allow("NUM001" if s % 2 else "OPT001", s).stop for s in range(30)]
    assert any(stopped)


def test_rollbacks_are_twenty_steps_apart_and_three_without_calm():
    rules = policy()
    assert rules.allow("OPT001", 100).do == ("rollback",)
    for step in range(101, 120):
        waiting = rules.allow("OPT001", step)
        assert (waiting.do, waiting.stop, waiting.left) == ((), False, 2)
    assert rules.allow("OPT001", 120).left == 1
    assert rules.allow("OPT001", 140).left == 0
    assert rules.allow("OPT001", 160).stop


@pytest.mark.parametrize(("good", "left"), [(999, 1), (1000, 2)])
def test_a_thousand_good_steps_give_the_rollbacks_back(good, left):
    rules = policy()
    rules.allow("OPT001", 100)
    assert rules.allow("OPT001", 100 + good + 1).left == left


def test_after_the_last_rollback_the_best_state_by_validation_is_restored():
    chosen = policy("checkpoint.metric=accuracy", "rollback.best=2")
    steps = range(0, 600, 100)
    found = [chosen.allow("OPT003", step) for step in steps]
    assert [one.do for one in found] == [
        *[("rollback", "lower_lr")] * 3, *[("restore_best", "lower_lr")] * 2, ("stop",)
    ]  # fmt: skip
    assert [one.left for one in found] == [2, 1, 0, 1, 0, 0]
    assert found[-1].stop and found[-1].why.endswith(", then restore_best + lower_lr 2 times")
    assert "then restore_best + lower_lr 2 times, then stop" in chosen.rule("OPT003").text


@pytest.mark.parametrize("off", ["checkpoint.metric=loss", "rollback.best=0", "checkpoint.best=0"])
def test_without_a_best_state_the_run_is_stopped_after_the_last_rollback(off):
    chosen = policy("checkpoint.metric=accuracy", off)
    found = [chosen.allow("OPT003", step) for step in range(0, 400, 100)]
    assert [one.stop for one in found] == [False, False, False, True]


def test_a_skip_is_not_followed_by_the_best_state():
    rules = policy("checkpoint.metric=accuracy").rules
    assert {rule.on for rule in rules if rule.best} == {"NUM003", "OPT001", "OPT003"}


def test_a_step_is_left_out_even_while_the_rule_cools_down():
    rules = policy("policy.NUM001.cooldown=10", "policy.NUM001=skip,rollback")
    assert rules.allow("NUM001", 5).do == ("skip", "rollback")
    assert rules.allow("NUM001", 6).do == ("skip",)


def test_two_optimizers_in_one_step_are_one_use():
    rules = policy("policy.NUM002.budget=1")
    assert rules.allow("NUM002", 5) == rules.allow("NUM002", 5)
    assert not rules.allow("NUM002", 5).stop


def test_stop_stops_at_once_and_says_who_said_so():
    decision = policy("policy.NUM003=stop").allow("NUM003", 7)
    assert decision.stop and decision.why == "the policy says stop on NUM003"


@pytest.mark.parametrize("code", ["MEM001", "XYZ", "", "NUM006"])
def test_other_codes_are_observed(code):
    assert policy().allow(code, 1) == Policy([]).allow(code, 1)
    assert policy().allow(code, 1).do == ()


@pytest.mark.parametrize(
    ("override", "code", "do", "why"),
    [
        ("guard.skip=false", "NUM001", ("observe",), "guard.skip is false"),
        ("guard.skip=false", "OPT002", ("clip",), "guard.skip is false"),
        ("rollback.snapshots=0", "OPT003", ("observe",), "rollback.snapshots is 0"),
        (
            "policy.OPT001=restore_best,lower_lr",
            "OPT001",
            ("observe",),
            "checkpoint.metric names no validation",
        ),
        ("quarantine.write=false", "NUM005", ("skip",), "quarantine.write is false"),
        ("spike.detect=false", "OPT002", ("observe",), "spike.detect is false"),
        ("rollback.reset_moments=true", "OPT001", ("rollback", "reset_moments"), ""),
    ],
)
def test_other_settings_take_actions_away_and_that_is_said(override, code, do, why):
    rules = policy(override)
    rule = rules.rule(code)
    assert (rule.do, rule.why) == (do, why)
    assert any(code in line and why in line for line in rules.lines())
    assert rules.does(code, do[0])


def test_the_lines_tell_every_rule_once():
    reported = policy().lines()
    assert reported[0] == "NUM001, NUM002: skip (stop after 1000 times in a row)"
    assert (
        "OPT001: rollback (stop after 3 times without 1000 good steps between; 20 steps apart)"
        in reported
    )
    assert reported[-1] == "everything else: observe"
    assert policy("policy=observe").lines()[0].endswith("OPT003: observe")
    assert "NUM003: stop" in policy("policy.NUM003=stop").lines()


@given(
    st.lists(st.sampled_from([rule.on for rule in DEFAULTS]), min_size=150, max_size=200),
    st.integers(1, 3),
)
def test_no_run_is_saved_for_ever(codes, optimizers):
    """Trouble on every step ends in a stop, whichever codes take turns."""
    rules = Policy([Rule(on="", do=("rollback",), cooldown=3, budget=2, reset_after=4)])
    assert any(rules.allow(code, i // optimizers).stop for i, code in enumerate(codes))
