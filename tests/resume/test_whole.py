"""Data that a script collects before training is made again, not saved; what changes is saved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from holdfast.resume.refusal import RefusedError
from holdfast.resume.values import whole
from holdfast.resume.values.baseline import StartValues
from holdfast.resume.values.digests import items_digest
from holdfast.resume.values.taking import Taking
from holdfast.resume.values.tensors import SavedTensors
from holdfast.resume.values.whole import whole_digest


class Record:
    def __init__(self, number: int) -> None:
        self.tokens, self.weight = [number, 2, 3], torch.ones(1)
        self.all: Any = None


def rows() -> list[Any]:
    return [[i, [float(i)], "text"] for i in range(5000)]


def look(baseline: StartValues, value: Any, *, first: bool = False) -> str:
    """The kind of the node of a list whose name the source changes."""
    return Taking(SavedTensors(), baseline, lambda name: True, first=first).take(value, "0/v")["#"]


def test_a_long_list_is_saved_only_when_it_has_changed():
    baseline, value = StartValues(), rows()
    look(baseline, value, first=True)
    assert look(baseline, value) == "large"
    value[4999][1][0] += 1e-9
    assert look(baseline, value) == "list"
    value[4999][1][0] = 4999.0
    assert look(baseline, value) == "large"
    assert look(baseline, value[::-1]) == "list"


def test_what_was_not_there_before_the_first_step_is_saved():
    baseline = StartValues()
    look(baseline, [], first=True)
    assert look(baseline, rows()) == "list"


def test_a_name_that_nobody_changes_is_not_read():
    baseline = StartValues()
    taking = Taking(SavedTensors(), baseline, lambda name: False, first=True)
    assert taking.take(rows(), "0/v")["#"] == "large" and not baseline.containers


def change(value: Any, how: str) -> None:
    one = value[-1]
    match how:
        case "tensor":
            one[0].mul_(2)
        case "array":
            one[1][0, 0] = 5
        case "dict":
            one[2]["deep"][0] = "other"
        case "record":
            one[3].tokens.append(1)
        case "attribute":
            one[3].weight = torch.ones(1)
        case _:
            one[4] = -0.0


@pytest.mark.parametrize("how", ["tensor", "array", "dict", "record", "attribute", "number"])
def test_every_change_is_seen(how: str):
    value = [
        [torch.ones(2), np.zeros((2, 2)), {"deep": ["x", None]}, Record(i), 0.0] for i in range(30)
    ]
    before = whole_digest(value, "v")
    assert before is not None and whole_digest(value, "v") == before
    change(value, how)
    assert whole_digest(value, "v") != before


def test_what_many_share_is_read_once():
    """Every record knows all others: one by one that would be a hundred million."""
    value = [Record(i) for i in range(10_000)]
    for one in value:
        one.all = value
    before = whole_digest(value, "v")
    assert before is not None and whole_digest(value, "v") == before
    value[7].tokens[0] = -1
    assert whole_digest(value, "v") != before


def test_what_cannot_be_read_has_no_digest():
    assert whole_digest([lambda: 1, *range(5000)], "v") is None
    assert whole_digest([torch.nn.Linear(1, 1)], "v") is None
    deep: Any = 1.5
    for _ in range(5000):
        deep = [deep, object]
    assert whole_digest([deep], "v") is None
    assert items_digest([deep]) == 0


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(whole, "_TEXT", 1 << 20)
    shared = list(range(1000))
    with pytest.raises(RefusedError, match="v holds too much to be saved"):
        whole_digest([(shared, i) for i in range(5000)], "0/v")


@pytest.mark.parametrize("kind", [list, tuple, set, dict.fromkeys])
def test_all_kinds_of_containers_are_read_to_their_end(kind: Any):
    value = kind(range(300_000))
    other = kind([*range(299_999), -1])
    assert whole_digest(value, "v") == whole_digest(kind(range(300_000)), "v")
    assert whole_digest(value, "v") != whole_digest(other, "v")
