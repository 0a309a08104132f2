from __future__ import annotations

import math

import numpy as np
import torch

from holdfast.checkpoint.file import save
from holdfast.checkpoint.tree import flatten
from holdfast.checkpoint.values import contrast


def pair(tmp_path, one, other):
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path, tree in zip(paths, (one, other), strict=True):
        save(path, *flatten(tree), {"step": 1})
    return contrast(*paths)


def test_equal_states_are_equal(tmp_path):
    tree = {"w": torch.tensor([1.0, torch.nan]), "z": torch.tensor([1j]), "lr": float("nan"),
            "a": np.array([1.0, np.nan]), "s": torch.tensor(3), "e": torch.empty(0)}  # fmt: skip
    found = pair(tmp_path, tree, tree)
    assert not found and found.equal == 4


def test_how_far_tensors_are_apart(tmp_path):
    one = {"a": torch.tensor([3.0, 4.0]), "b": torch.ones(2, dtype=torch.int64), "c": torch.ones(2)}
    other = {**one, "a": torch.tensor([3.0, 4.5]), "b": torch.tensor([1, 5])}
    found = pair(tmp_path, one, other)
    b, a = found.tensors
    assert (a.name, a.changed, a.elements, a.largest, a.relative) == ("a", 1, 2, 0.5, 0.1)
    assert (b.name, b.largest) == ("b", 4.0) and found.equal == 1


def test_what_is_not_finite_comes_first_and_zeros_divide_nothing(tmp_path):
    one = {"a": torch.zeros(2), "b": torch.ones(2), "c": torch.ones(2).to(torch.float8_e5m2)}
    other = {"a": torch.ones(2), "b": torch.tensor([1, torch.nan]),
             "c": torch.tensor([1, 2]).to(torch.float8_e5m2)}  # fmt: skip
    found = pair(tmp_path, one, other)
    assert {change.name for change in found.tensors[:2]} == {"a", "b"}
    by_name = {change.name: change for change in found.tensors}
    assert math.isinf(by_name["a"].relative) and math.isnan(by_name["b"].relative)
    assert by_name["c"].largest == 1


def test_shapes_and_plain_values(tmp_path):
    one = {"w": torch.ones(2), "groups": [{"lr": 0.1, "betas": (0.9, 0.99)}], "old": 1, "n": 1}
    other = {
        "w": torch.ones(3),
        "groups": [{"lr": 0.05, "betas": (0.9, 0.99)}],
        "new": "x",
        "n": 1.0,
    }
    found = pair(tmp_path, one, other)
    assert found.shapes.differing == (("w", "float32 [2]", "float32 [3]"),)
    assert found.values == (
        ("groups.0.lr", 0.1, 0.05),
        ("old", 1, "(absent)"),
        ("n", 1, 1.0),
        ("new", "(absent)", "x"),
    )


def test_the_sign_of_zero_counts(tmp_path):
    found = pair(tmp_path, {"w": torch.tensor([0.0])}, {"w": torch.tensor([-0.0])})
    assert found.tensors[0].changed == 1 and found.tensors[0].largest == 0
