"""Which validation was the best, and when to give up."""

from __future__ import annotations

import math

import pytest

from holdfast.errors import UsageError
from holdfast.training.loop.stopping import BestSoFar, StopSettings


def test_the_best_is_remembered_and_patience_ends() -> None:
    best_so_far = BestSoFar(StopSettings(patience=2))
    assert [best_so_far.validated(s, {"loss": v}) for s, v in ((1, 3.0), (2, 2.0), (3, 2.5))] == [
        True,
        True,
        False,
    ]
    assert best_so_far.why_stop == ""
    best_so_far.validated(4, {"loss": math.nan})
    assert "2 validations without a better loss than 2 at step 2" in best_so_far.why_stop
    best_so_far.validated(5, {"loss": 1.0})
    assert (best_so_far.best, best_so_far.best_step, best_so_far.why_stop) == (1.0, 5, "")


def test_higher_may_be_better_and_small_changes_are_none() -> None:
    best_so_far = BestSoFar(StopSettings(metric="accuracy", mode="max", least=0.1))
    values = [0.5, 0.55, 0.65, 0.6]
    found = [best_so_far.validated(i, {"accuracy": v}) for i, v in enumerate(values)]
    assert found == [True, False, True, False]


def test_nothing_that_is_not_finite_is_the_best() -> None:
    best_so_far = BestSoFar(StopSettings(mode="max"))
    assert not best_so_far.validated(1, {"loss": math.inf})
    assert best_so_far.validated(2, {"loss": -1.0})


def test_without_patience_it_never_ends() -> None:
    best_so_far = BestSoFar(StopSettings())
    for step in range(50):
        best_so_far.validated(step, {"loss": float(step)})
    assert best_so_far.why_stop == ""


def test_an_unknown_metric_names_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"stop.metric is 'f1'.*gave accuracy, loss"):
        BestSoFar(StopSettings(metric="f1")).validated(3, {"loss": 1.0, "accuracy": 0.5})


def test_it_goes_on_where_it_was_saved() -> None:
    one, other = BestSoFar(StopSettings(patience=2)), BestSoFar(StopSettings(patience=2))
    one.validated(1, {"loss": 1.0})
    one.validated(2, {"loss": 2.0})
    other.load_state_dict(one.state_dict())
    other.validated(3, {"loss": 2.0})
    assert other.why_stop and not one.why_stop


def test_a_best_by_another_metric_is_not_taken_over():
    old = BestSoFar(StopSettings())
    old.validated(3, {"loss": 0.5, "accuracy": 0.7})
    new = BestSoFar(StopSettings(metric="accuracy", mode="max"))
    new.load_state_dict(old.state_dict())
    assert new.validated(4, {"loss": 0.6, "accuracy": 0.2}) and new.best == 0.2
