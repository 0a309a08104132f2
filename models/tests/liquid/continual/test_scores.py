"""Scores over tasks, worked out by hand."""

import json

import pytest

from holdfast_models.liquid.continual.scores import TaskScores

AFTER = [[0.9, 0.3, 0.2], [0.7, 0.8, 0.3], [0.6, 0.5, 0.9]]


def full() -> TaskScores:
    scores = TaskScores(["python", "english", "verse"])
    for task in range(3):
        scores.set(None, task, 0.1)
        for trained in range(3):
            scores.set(trained, task, AFTER[trained][task])
    return scores


def test_measures() -> None:
    found = full().plain()
    assert found["accuracy"] == pytest.approx((0.6 + 0.5 + 0.9) / 3)
    assert found["backward_transfer"] == pytest.approx((0.6 - 0.9 + 0.5 - 0.8) / 2)
    assert found["forward_transfer"] == pytest.approx((0.3 - 0.1 + 0.3 - 0.1) / 2)
    assert found["forgetting"] == pytest.approx((0.9 - 0.6 + 0.8 - 0.5) / 2)


def test_forgetting_counts_from_the_best_score_not_from_the_first() -> None:
    scores = full()
    scores.set(1, 0, 0.95)
    assert scores.plain()["forgetting"] == pytest.approx((0.95 - 0.6 + 0.8 - 0.5) / 2)


def test_what_is_not_known_yet_is_none() -> None:
    scores = TaskScores(["a", "b"])
    scores.set(0, 0, 0.5)
    found = scores.plain()
    assert found["after"] == [[0.5, None], [None, None]]
    assert found["accuracy"] is None and found["forgetting"] is None
    assert scores.lines()[2].split() == ["a", "0.5000", "nan"] and scores.lines()[-1] == ""


def test_tasks_that_were_scored_only_after_their_training_still_have_forgetting() -> None:
    scores = TaskScores(["a", "b", "c"])
    for trained, task, score in ((0, 0, 0.9), (1, 0, 0.8), (1, 1, 0.7), (2, 0, 0.5), (2, 1, 0.6)):
        scores.set(trained, task, score)
    scores.set(2, 2, 0.9)
    assert scores.plain()["forgetting"] == pytest.approx((0.4 + 0.1) / 2)
    assert scores.plain()["forward_transfer"] is None


def test_one_task_has_an_accuracy_and_no_transfer() -> None:
    scores = TaskScores(["only"])
    scores.set(0, 0, 0.5)
    assert scores.plain()["accuracy"] == 0.5
    assert "forgetting" not in scores.plain()


def test_lines_are_a_table_and_the_measures() -> None:
    lines = full().lines()
    assert len(lines) == 6
    assert lines[2].split() == ["python", "0.9000", "0.3000", "0.2000"]
    assert "forgetting +0.3000" in lines[-1] and "backward transfer -0.3000" in lines[-1]


def test_state_and_json_round_trip() -> None:
    scores, again = full(), TaskScores(["python", "english", "verse"])
    again.load_state_dict(scores.state_dict())
    assert again.plain() == scores.plain()
    assert json.loads(json.dumps(scores.plain())) == scores.plain()
