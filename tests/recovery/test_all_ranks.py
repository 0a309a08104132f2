"""What ranks decide from what each of them says."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.recovery.agreement import Proposal
from holdfast.recovery.all_ranks import (
    CLIP,
    OUTLIERS,
    PACE,
    ROLLBACK,
    SAVE,
    STOP,
    AllRanks,
    asked_for,
)
from holdfast.suspicion import Suspicion

SPIKE = Suspicion("OPT001", "loss", 56, 51, 90.0, 1.0, 3.0)


def answer(**said: Any) -> dict[str, Any]:
    rows = [(step, 1.0, 0.5) for step in range(40, 51)]
    rows += [(step, 90.0, 0.5 + step / 100) for step in range(51, 57)]
    facts = {"recent": rows, "usual": 1.0, "limit": 3.0, "comparable": True, "why": ""}
    return {**facts, "every": 16, "snapshots": [(48, 1.0), (32, 0.8)], **said}


def with_losses(loss: float) -> list[tuple[int, float, float]]:
    return [(s, loss if s > 50 else 1.0, norm) for s, _, norm in answer()["recent"]]


def asks(what: str = ROLLBACK, found: Suspicion = SPIKE, **facts: Any) -> Proposal:
    about = asked_for(found, 0, asked=False) if what == ROLLBACK else {}
    return Proposal(3, what, 1, {**about, **facts})


def decide(proposal: Proposal, *answers: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    training: Any = SimpleNamespace(iteration=60)
    return AllRanks(training, SimpleNamespace(), SimpleNamespace()).decide(proposal, answers)  # type: ignore[arg-type]


def test_they_go_back_to_the_newest_snapshot_that_all_of_them_have():
    why, facts = decide(asks(), answer(), answer(snapshots=[(32, 0.8), (16, 1.2)]))
    assert (why, facts["to"]) == ("", 32)
    assert (facts["loss"], facts["usual"], facts["limit"]) == (90.0, 1.0, 3.0)


def test_of_a_run_that_diverges_the_best_one_by_the_loss_of_all():
    found = Suspicion("OPT003", "loss", 56, 56, 90.0, 1.0, 1.5)
    levels = answer(snapshots=[(48, 3.0), (32, 1.0), (16, 1.1)])
    others = answer(snapshots=[(48, 3.0), (32, 2.0), (16, 1.1)])
    assert decide(asks(found=found), levels, others)[1]["to"] == 16


def test_nobody_goes_back_where_only_one_rank_has_a_high_loss():
    calm = answer(recent=with_losses(1.0))
    why, facts = decide(asks(), calm, answer(recent=with_losses(4.0)))
    assert "the loss of rank 1 is high and that of all ranks is not" in why and not facts
    # Where weights are damaged, the mean of all is high.
    assert not decide(asks(), answer(recent=with_losses(20.0)), answer())[0]


def test_nobody_goes_back_without_a_snapshot_in_common():
    why, _ = decide(asks(), answer(snapshots=[(48, 1.0)]), answer(snapshots=[(32, 1.0)]))
    assert why == "no good snapshot was taken by all ranks before step 51"


def test_every_rank_must_have_losses_that_can_be_compared_unless_the_user_asks():
    stream = answer(comparable=False, why="a stream")
    assert decide(asks(), answer(), stream) == ("a stream", {})
    assert decide(asks(asked=True), answer(), stream)[0] == ""
    # Weights that are not finite are damaged whatever the data is.
    found = Suspicion("NUM003", "weights", 56, 56, math.nan, 1.0, 3.0)
    assert decide(asks(found=found), answer(), stream)[0] == ""


@pytest.mark.parametrize("kind", [ROLLBACK, OUTLIERS, CLIP, PACE])
def test_ranks_with_different_gradients_train_by_themselves(kind: str):
    other = answer(recent=[(s, loss, norm * 1.01) for s, loss, norm in answer()["recent"]])
    why, _ = decide(asks(kind), answer(), other)
    assert why == "ranks have different gradients: each trains by itself"


def test_norms_that_are_not_finite_or_not_known_yet_say_nothing():
    nan = [(s, loss, math.nan if s == 50 else norm) for s, loss, norm in answer()["recent"]]
    assert decide(asks(), answer(), answer(recent=nan))[0] == ""
    assert "no step in common" in decide(asks(), answer(), answer(recent=[]))[0]


def test_stopping_and_saving_need_no_evidence():
    save, stop = asks(SAVE, kind="time"), asks(STOP, code="NUM001", first=51)
    assert decide(save, answer(), answer(recent=[])) == ("", {"kind": "time"})
    why, facts = decide(stop, answer(), answer(recent=[], snapshots=[(32, 1.0)]))
    assert (why, facts["to"]) == ("", 32), "they save the newest good state that all have"
    assert decide(stop, answer(), answer(snapshots=[]))[1]["to"] is None


def test_outliers_are_skipped_where_all_may_and_snapshots_taken_as_the_slowest_can():
    assert decide(asks(OUTLIERS), answer(), answer())[1] == {"skip": True}
    assert decide(asks(OUTLIERS), answer(), answer(comparable=False))[1] == {"skip": False}
    assert decide(asks(PACE), answer(), answer(every=48))[1] == {"every": 48}


@pytest.mark.parametrize(
    ("every", "same"),
    [
        ([{"value": 24}, {"value": 24}], True),
        ([{"value": 24}, {"value": 16}], False),
        ([{"value": 24}, {"value": None}], False),
        (None, False),  # one did not come
    ],
)
def test_ranks_have_the_same_or_do_nothing(every: Any, same: bool, monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, dict[str, Any]]] = []

    def exchange(name: str, own: dict[str, Any], patience: float) -> Any:
        asked.append((name, own))
        return every

    all_ranks = AllRanks(SimpleNamespace(), SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    assert all_ranks.same("best/60", 24), "a process alone has nobody to ask"
    monkeypatch.setattr(all_ranks, "begin", lambda: True)
    assert not all_ranks.same("best/60", 24), "nobody can be asked"
    all_ranks.agreement = SimpleNamespace(over=False, exchange=exchange)  # type: ignore[assignment]
    assert all_ranks.same("best/60", 24) is same
    assert asked == [("best/60", {"value": 24})]
