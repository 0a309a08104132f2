from __future__ import annotations

import enum
import json
import math
import random
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.tree import (
    flatten,
    forms,
    is_skeleton,
    paths,
    unflatten,
)
from holdfast.errors import CheckpointError

plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
)
square = np.arange(6, dtype=">i2").reshape(2, 3)
arrays = st.sampled_from([square, np.float32("nan"), np.zeros(0), np.array(3), np.bool_(1)])
tensors = st.builds(lambda n: torch.arange(n, dtype=torch.bfloat16), st.integers(0, 4))
trees = st.recursive(
    plain | arrays | tensors,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
)


def again(tree):
    skeleton, tensors = flatten(tree)
    return unflatten(json.loads(json.dumps(skeleton, allow_nan=False)), tensors)


def same(one, other) -> bool:
    """Equal in type, value and order, NaN and -0.0 included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, torch.Tensor):
        return one is other
    return repr(one) == repr(other)


@given(trees)
def test_a_tree_comes_back_as_it_was(tree):
    assert same(again(tree), tree)


def test_dice_come_back():
    for state in (random.getstate(), np.random.get_state(), torch.get_rng_state()):
        assert same(again({"dice": state})["dice"], state)


def test_children_of_plain_types_come_back_plain():
    class Colour(enum.IntEnum):
        RED = 3

    tree = again({"a": Colour.RED, "b": OrderedDict(x=1), "c": torch.Size([2, 3])})
    assert same(tree, {"a": 3, "b": {"x": 1}, "c": (2, 3)})


def test_milestones_stay_a_counter_and_types_of_torch_themselves():
    tree = again({"m": Counter({30: 1}), "t": torch.float16, "d": torch.device("cuda", 1)})
    assert tree["m"].most_common() == [(30, 1)]
    assert (tree["t"], tree["d"]) == (torch.float16, torch.device("cuda:1"))


def test_names_of_tensors_are_the_way_to_them():
    tree = {
        "models": {"model": {"layer.weight": torch.ones(2)}},
        "optimizers": [{"state": {3: {"exp_avg": torch.ones(1), "step": 4}}}],
        "pair": (1, torch.ones(3)),
    }
    expected = ["models.model.layer.weight", "optimizers.0.state.3.exp_avg", "pair.1"]
    assert paths(tree) == paths(flatten(tree)[0]) == expected
    assert forms(tree)["pair.1"] == ("float32", (3,))
    assert paths(torch.ones(1)) == ["value"]


def test_names_are_never_equal():
    tree = {"a.b": torch.ones(1), "a": {"b": torch.ones(2)}, "__metadata__": torch.ones(3)}
    assert paths(tree) == ["a.b", "a.b#2", "__metadata__#2"]
    assert paths({0: torch.ones(1), "0": torch.ones(1)}) == ["0", "0#2"]


def test_what_is_one_tensor_stays_one():
    weight = torch.ones(2, 2)
    tree = {"in": weight.detach(), "out": weight.detach(), "row": weight[0], "t": weight.t()}
    skeleton, found = flatten(tree)
    assert len(found) == 3 and paths(skeleton) == ["in", "row", "t"]
    back = unflatten(skeleton, found)
    assert back["in"] is back["out"] and torch.equal(back["t"], weight.t())


def test_other_tensors_in_the_same_memory_are_not_taken_for_one():
    z = torch.tensor([1 + 2j])
    assert len(flatten([z, z.conj()])[1]) == 2
    assert len(flatten([torch.empty(0), torch.empty(0)])[1]) == 2
    assert len(flatten([torch.empty(2, device="meta"), torch.empty(2, device="meta")])[1]) == 2
    assert len(flatten([z, torch.view_as_real(z)])[1]) == 2


def test_values_that_change_later_are_copied():
    numbers, array = [1, 2], np.zeros(2)
    skeleton, found = flatten({"n": numbers, "a": array})
    numbers.append(3)
    array[:] = 7
    back = unflatten(skeleton, found)
    assert back["n"] == [1, 2] and not back["a"].any()
    back["a"][0] = 1  # and can be written to


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"fn": {"deep": [print]}}, "a builtin_function_or_method cannot be saved, .* fn.deep.0"),
        ({"s": {1}}, "a set cannot be saved"),
        ({(1, 2): 3}, r"key \(1, 2\) \(tuple\)"),
        ({"x": {1.5: 3}}, r"key 1.5 \(float\).* at x;"),
        (np.array([print]), "dtype object .* at its root"),
        (np.array(["a"]), "dtype <U1"),
    ],
)
def test_what_cannot_be_saved_is_named_with_its_place(value, says):
    with pytest.raises(CheckpointError, match=says):
        flatten(value)


def test_a_tree_that_contains_itself():
    tree: list[object] = []
    tree.append(tree)
    with pytest.raises(CheckpointError, match="contains itself"):
        flatten(tree)


@pytest.mark.parametrize(
    "skeleton",
    [None, {}, [], {"holdfast.tree": {"tensor": 5}}, {"holdfast.tree": {"odd": 1}},
     {"holdfast.tree": {"array": [1]}}, {"holdfast.tree": {"dict": [1]}}],
)  # fmt: skip
def test_what_is_no_skeleton_is_refused(skeleton):
    with pytest.raises(CheckpointError, match="no skeleton"):
        unflatten(skeleton, [])


def test_a_skeleton_is_reported_from_a_tree():
    assert is_skeleton(flatten({})[0])
    assert not is_skeleton({"dict": []}) and not is_skeleton([1])


def test_numbers_are_exact():
    numbers = [0.1, 1e-308, -0.0, 2**70, math.pi, 5e-324]
    assert same(again(numbers), numbers)
