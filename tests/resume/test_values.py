"""What variables hold survives being saved and put back into another process."""

from __future__ import annotations

import argparse
import collections
import copy
import datetime
import gc
import pathlib
import random
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.checkpoint.tree import flatten, unflatten
from holdfast.resume.refusal import RefusedError
from holdfast.resume.values.baseline import StartValues
from holdfast.resume.values.nodes import MISSING
from holdfast.resume.values.restoring import ValueRestoring
from holdfast.resume.values.taking import Taking
from holdfast.resume.values.tensors import SavedTensors

Point = collections.namedtuple("Point", "x y")


class Meter:
    def __init__(self) -> None:
        self.total, self.values = 0.0, [1.0]
        self.parent: Any = None


def saved(value: Any, **options: Any) -> Any:
    """The node of a value, through the form in which files hold it."""
    node = Taking(SavedTensors(), StartValues(), lambda name: True, **options).take(value, "0/v")
    return unflatten(*flatten(node))


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other))
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, 2.5, float("inf"), "text", b"bytes", 1 + 2j),
        [1, [2.0, "x"], (3, None)],
        {"a": 1, 2: [3], (1, 2): "pair"},
        {1, 2, 3},
        collections.deque([1, 2], maxlen=3),
        collections.Counter("aab"),
        collections.OrderedDict(a=1),
        collections.defaultdict(list, a=[1]),
        Point(1, 2),
        argparse.Namespace(lr=0.1, names=["a"]),
        torch.arange(6.0).view(2, 3),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.empty(0),
        np.arange(4).reshape(2, 2),
        np.float64(0.1),
        range(2, 9, 3),
        pathlib.Path("a/b"),
        datetime.datetime(2026, 11, 17, 12, 30),
        datetime.timedelta(days=1, seconds=3),
        torch.float16,
        torch.Size([1, 2]),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_values_come_back_as_they_were(value: Any, inline: bool):
    restored = ValueRestoring().value(MISSING, saved(value, inline=inline), "0/v")
    assert equal(restored, value)


def test_an_object_is_filled_where_it_stands():
    then, live = Meter(), Meter()
    then.total, then.values, then.parent = 3.0, [1.0, 2.0], then
    held = live.values
    assert ValueRestoring().value(live, saved(then), "0/v") is live
    assert (live.total, live.values, live.parent) == (3.0, [1.0, 2.0], live)
    assert live.values is held


def test_what_was_one_object_is_one_again():
    shared = [1]
    one, other = ValueRestoring().value(MISSING, saved([shared, shared]), "0/v")
    assert one is other == [1]


@pytest.mark.parametrize(
    ("make", "draw"),
    [
        (lambda: torch.Generator().manual_seed(1), lambda g: torch.rand(2, generator=g).tolist()),
        (lambda: random.Random(1), lambda g: [g.random(), g.gauss(0, 1)]),
        (lambda: np.random.default_rng(1), lambda g: g.random(3).tolist()),
        (lambda: np.random.RandomState(1), lambda g: g.rand(3).tolist()),
    ],
)
def test_generators_go_on_where_they_were(make: Any, draw: Any):
    then, live = make(), make()
    draw(then)
    node = saved(then)
    ValueRestoring().value(live, node, "0/v")
    assert draw(live) == draw(then)


def test_a_module_gets_its_flags_its_numbers_and_its_tensors():
    then: Any = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1), nn.BatchNorm1d(2))
    live = copy.deepcopy(then)
    then.eval()
    then[1].p = 0.7
    then[0].weight.requires_grad_(False)
    with torch.no_grad():
        then[0].weight.fill_(3)
    ValueRestoring().value(live, saved(then), "0/v")
    assert not live.training and live[1].p == 0.7 and not live[0].weight.requires_grad
    assert torch.equal(live[0].weight, then[0].weight)


def test_a_closure_and_a_class_get_their_variables():
    def counter() -> Any:
        n = [0]
        return lambda: n.append(1) or len(n)

    then, live = counter(), counter()
    then()
    then()
    ValueRestoring().value(live, saved(then), "0/v")
    assert live() == then() == 4


def test_what_nobody_has_changed_is_made_again_and_compared():
    baseline, x = StartValues(), torch.arange(4.0)
    Taking(SavedTensors(), baseline, lambda name: True, first=True).take(x, "0/x")
    assert not baseline.digests  # a run without a checkpoint never reads its data for this
    node = Taking(SavedTensors(), baseline, lambda name: True).take(x, "0/x")
    assert node["#"] == "made"
    same = torch.arange(4.0)
    assert ValueRestoring().value(same, node, "0/x") is same
    with pytest.raises(RefusedError, match="x with other values each time"):
        ValueRestoring().value(torch.ones(4), node, "0/x")
    x += 1
    assert Taking(SavedTensors(), baseline, lambda name: True).take(x, "0/x")["#"] == "tensor"


def test_a_look_keeps_nothing_alive_once_it_is_over():
    value = Meter()
    value.parent = [nn.Linear(1, 1), lambda: value.total]
    held = weakref.ref(value.parent[0])
    gc.collect()
    gc.disable()
    try:
        saved(value.parent)
        value.parent = None
        assert held() is None
    finally:
        gc.enable()


def test_tensors_that_share_memory_share_it_afterwards():
    x = torch.arange(8.0)
    parts = ValueRestoring().value(MISSING, saved([x[2:4], x[4:], x[1::2].view(2, 2)]), "0/v")
    assert [one.tolist() for one in parts] == [[2, 3], [4, 5, 6, 7], [[1, 3], [5, 7]]]
    parts[1][1] = 50
    assert parts[2][1].tolist() == [50, 7]
    with pytest.raises(RefusedError, match="share their memory"):
        saved([x, x[1:]], inline=True)
    with pytest.raises(RefusedError, match="share their memory"):
        saved([x, x.view(torch.int32)])


def test_two_objects_that_were_one_at_first_are_two():
    one: list[Any] = [1]
    meter = Meter()
    back = ValueRestoring().value(
        [one, one, meter, meter], saved([[2], [3], Meter(), Meter()]), "0/v"
    )
    assert back[:2] == [[2], [3]]
    assert back[2] is meter and back[3] is not meter


def test_a_graph_that_was_used_counts_as_none():
    weight = torch.ones(2, requires_grad=True)
    loss = (weight**2).sum()
    with pytest.raises(RefusedError, match="carries a graph"):
        saved(loss)
    loss.backward()
    assert ValueRestoring().value(MISSING, saved(loss), "0/v").item() == 2.0


@pytest.mark.parametrize(
    "value", [iter([[1]]), (n for n in "ab"), zip([1], [2], strict=True), map(str, [1])]
)
def test_iterators_are_refused(value: Any):
    with pytest.raises(RefusedError, match="is an iterator"):
        saved(value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_operators_of_the_script_are_defined_by_the_resumed_one():
    library = torch.library.Library("resume_values", "DEF")
    library.define("half(Tensor x) -> Tensor")

    @torch.library.custom_op("resume_values::third", mutates_args=())
    def third(x: torch.Tensor) -> torch.Tensor:
        return x / 3

    packet = torch.ops.resume_values.half
    traced = torch.jit.trace(lambda x: x / 4, torch.ones(1))
    for operator in (library, third, packet, packet.default, traced):
        assert saved(operator)["#"] == "ref", operator
        assert ValueRestoring().value(operator, saved(operator), "0/v") is operator
